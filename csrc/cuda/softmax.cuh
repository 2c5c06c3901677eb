// The class probabilities of a draw, over the classes of a team or, where those are a tile, over all.
#pragma once

#include "exponential.cuh"
#include "sampler.cuh"

namespace hetnet {
namespace cuda {

// What a tile of classes must be told about the samples of a batch of rows: [row][sample].
template <class T>
struct SampleNumbers {
  T* max;     // largest utility
  T* sum;     // of exp(utility - max)
  T* number;  // a kernel's own
};

template <class T, int kSamples>
struct Softmax {
  T exponential[kSamples][4];  // of utility - max
  T max[kSamples];
  T sum[kSamples];          // of exponentials, over all classes
  T inverse_sum[kSamples];  // 0 for what is no sample

  // All threads of the block call it. kGiven: the classes are a tile, and `given` knows of the others, from
  // `at` on for the draw.
  template <bool kGiven>
  HETNET_DEVICE static Softmax of(const Draw<T, kSamples>& draw, int64_t samples, Team<T>& team,
                                  const SampleNumbers<T>& given, int64_t at) {
    Softmax softmax;
    if constexpr (kGiven) {
      for (int s = 0; s < kSamples; ++s) {
        const bool valid = draw.sample + s < samples;
        softmax.max[s] = valid ? given.max[at + s] : kInfinity<T>;  // whose exponentials are 0
        softmax.sum[s] = valid ? given.sum[at + s] : T(1);
      }
      softmax.set_exponentials(draw);
    } else {
      softmax.reduce(draw, team);
    }
    for (int s = 0; s < kSamples; ++s)
      softmax.inverse_sum[s] = draw.sample + s < samples ? reciprocal(softmax.sum[s]) : T(0);
    return softmax;
  }

  // Max and sum over the team's classes. A max of -inf, where all of them are masked, is kept as
  // `if_masked`.
  HETNET_DEVICE void reduce(const Draw<T, kSamples>& draw, Team<T>& team, T if_masked = -kInfinity<T>) {
    for (int s = 0; s < kSamples; ++s) {
      const T* u = draw.utility[s];
      max[s] = fmax(fmax(u[0], u[1]), fmax(u[2], u[3]));
    }
    team.reduce(max, Max<T>());
    for (int s = 0; s < kSamples; ++s) max[s] = max[s] == -kInfinity<T> ? if_masked : max[s];
    set_exponentials(draw);
    for (int s = 0; s < kSamples; ++s) {
      const T* e = exponential[s];
      sum[s] = (e[0] + e[1]) + (e[2] + e[3]);
    }
    team.reduce(sum, Sum<T>());
  }

  HETNET_DEVICE T probability(int s, int j) const { return exponential[s][j] * inverse_sum[s]; }
  HETNET_DEVICE T log_probability(int s, T utility) const { return (utility - max[s]) - hetnet::log(sum[s]); }

 private:
  HETNET_DEVICE void set_exponentials(const Draw<T, kSamples>& draw) {
    for (int s = 0; s < kSamples; ++s)
      for (int j = 0; j < kClasses; ++j) exponential[s][j] = cuda::exponential(draw.utility[s][j] - max[s]);
  }
};

}  // namespace cuda
}  // namespace hetnet
