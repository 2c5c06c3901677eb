// The kernels without gradients. A block takes the groups of rows `blockIdx.x`, `blockIdx.x + gridDim.x`,
// ... of a batch, and of the classes tile `blockIdx.y`. With kTiles there are several, and what each must
// know of the others is `given`. Results are of the slice of samples `blockIdx.z`: [slice][row of the batch][class].
#pragma once

#include "gradient.cuh"

namespace hetnet {
namespace cuda {

template <class T, int kSamples, Purpose kPurpose>
__global__ void __launch_bounds__(kThreadsWithFewRegisters<T>)
    sample_logits_kernel(DeviceHead<T> device_head, Plan plan, Batch batch, T* __restrict__ out) {
  Sampler<T, kSamples, kPurpose> sampler(device_head, plan, batch);
  const Head<T>& head = sampler.head;
  for (int64_t group = blockIdx.x; group < sampler.groups(); group += gridDim.x) {
    sampler.bind(group);
#pragma unroll 1
    for (int64_t step = sampler.first_step(); step < sampler.end_step(); ++step) {
      Draw<T, kSamples> draw;
      sampler.draw(step, draw);
      for (int s = 0; s < kSamples; ++s)
        for (int j = 0; j < kClasses; ++j)
          if (sampler.live() && draw.sample + s < head.samples && sampler.has(j))
            out[(draw.sample + s) * head.rows * head.classes + sampler.at(j)] = draw.utility[s][j];
    }
  }
}

// Of each sample, max and sum of a tile's classes, and the utility of the class `target` of its row, if
// that is given: [tile][row][sample], but the target's [row][sample].
template <class T, int kSamples, Purpose kPurpose>
__global__ void __launch_bounds__(kThreadsWithFewRegisters<T>)
    normalize_kernel(DeviceHead<T> device_head, Plan plan, Batch batch, SampleNumbers<T> out,
                     const int64_t* __restrict__ target) {
  Sampler<T, kSamples, kPurpose> sampler(device_head, plan, batch);
  const Head<T>& head = sampler.head;
  Team<T>& team = sampler.team;
  const int64_t tile = sampler.tile() * batch.rows * head.samples;
  for (int64_t group = blockIdx.x; group < sampler.groups(); group += gridDim.x) {
    sampler.bind(group);
    const int64_t own_target = target == nullptr ? -1 : target[sampler.row()] - sampler.first_class();
#pragma unroll 1
    for (int64_t step = 0; step < sampler.steps(); ++step) {
      Draw<T, kSamples> draw;
      sampler.draw(step, draw);
      Softmax<T, kSamples> softmax;
      softmax.reduce(draw, team, T(0));
      for (int s = 0; s < kSamples; ++s) {
        if (!sampler.live() || draw.sample + s >= head.samples) continue;
        const int64_t at = sampler.sample_at(draw.sample + s);
        if (team.lane == 0) {
          out.max[tile + at] = softmax.max[s];
          out.sum[tile + at] = softmax.sum[s];
        }
        for (int j = 0; j < kClasses; ++j)
          if (own_target == j) out.number[at] = draw.utility[s][j];
      }
    }
  }
}

// Max and sum over all tiles. A tile without an unmasked class has a sum of 0 and no max.
template <class T>
__global__ void __launch_bounds__(kMostThreads)
    combine_tiles_kernel(SampleNumbers<T> parts, int64_t tiles, int64_t count, SampleNumbers<T> out) {
  const int64_t stride = int64_t{blockDim.x} * gridDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    T max = -kInfinity<T>, sum = T(0);
    for (int64_t tile = 0; tile < tiles; ++tile)
      if (parts.sum[tile * count + i] != T(0)) max = fmax(max, parts.max[tile * count + i]);
    for (int64_t tile = 0; tile < tiles; ++tile)
      if (parts.sum[tile * count + i] != T(0))
        sum += parts.sum[tile * count + i] * hetnet::exp(parts.max[tile * count + i] - max);
    out.max[i] = max;
    out.sum[i] = sum;
  }
}

template <class T, int kSamples, bool kTiles>
__global__ void __launch_bounds__(kThreadsWithFewRegisters<T>)
    log_probs_kernel(DeviceHead<T> device_head, Plan plan, Batch batch, SampleNumbers<T> given,
                     T* __restrict__ log_probs, T* __restrict__ probs) {
  Sampler<T, kSamples, kForward> sampler(device_head, plan, batch);
  const Head<T>& head = sampler.head;
  Team<T>& team = sampler.team;
  for (int64_t group = blockIdx.x; group < sampler.groups(); group += gridDim.x) {
    sampler.bind(group);
    T prob[4], log_prob[4];
    // One pass for the probabilities. If some underflow, one more, relative to the largest term, which
    // changes on the way.
    for (bool relative = false;;) {
      T sums[4] = {}, largest[4];
      fill(largest, -kInfinity<T>);
#pragma unroll 1
      for (int64_t step = sampler.first_step(); step < sampler.end_step(); ++step) {
        Draw<T, kSamples> draw;
        sampler.draw(step, draw);
        const auto softmax =
            Softmax<T, kSamples>::template of<kTiles>(draw, head.samples, team, given, sampler.sample_at(draw.sample));
        if (!HETNET_RARE(relative)) {
          for (int j = 0; j < kClasses; ++j) {
            T sum = T(0);
            for (int s = 0; s < kSamples; ++s)
              sum = lane<T>::fmadd(softmax.exponential[s][j], softmax.inverse_sum[s], sum);
            sums[j] += sum;
          }
          continue;
        }
        for (int s = 0; s < kSamples; ++s)
          for (int j = 0; j < kClasses; ++j) {
            if (draw.sample + s >= head.samples || sampler.masked(j)) continue;
            const T log_p = softmax.log_probability(s, draw.utility[s][j]), larger = fmax(largest[j], log_p);
            sums[j] = sums[j] * hetnet::exp(largest[j] - larger) + hetnet::exp(log_p - larger);
            largest[j] = larger;
          }
      }
      const T samples = static_cast<T>(sampler.samples());
      if (relative) {
        for (int j = 0; j < kClasses; ++j) {
          const T most = max_over_teams(team, sampler.merge(), largest[j]);
          const T sum = sum_over_teams(team, sampler.merge(), sums[j] * hetnet::exp(largest[j] - most));
          if (prob[j] < T(kSmallestProbability) && !sampler.masked(j)) log_prob[j] = most + hetnet::log(sum / samples);
        }
        break;
      }
      for (int j = 0; j < kClasses; ++j) {
        prob[j] = sum_over_teams(team, sampler.merge(), sums[j]) / samples;
        log_prob[j] = log_or_limit(prob[j]);
        relative = relative || (prob[j] < T(kSmallestProbability) && !sampler.masked(j));
      }
      relative = __syncthreads_or(relative);
      if (!relative) break;
    }
    for (int j = 0; j < kClasses; ++j)
      if (sampler.stores(j)) {
        probs[sampler.slice_at(j)] = prob[j];
        log_probs[sampler.slice_at(j)] = log_prob[j];
      }
  }
}

// Mean and variance of the probabilities, and of the mean entropy, in nats, the tile's part: [tile][row], or of the
// slice of samples: [slice][row].
template <class T, int kSamples, Purpose kPurpose, bool kTiles>
__global__ void __launch_bounds__(kThreadsWithManyRegisters<T>)
    statistics_kernel(DeviceHead<T> device_head, Plan plan, Batch batch, SampleNumbers<T> given, T* __restrict__ mean,
                      T* __restrict__ variance, T* __restrict__ entropy) {
  Sampler<T, kSamples, kPurpose> sampler(device_head, plan, batch);
  const Head<T>& head = sampler.head;
  Team<T>& team = sampler.team;
  const int64_t slice_samples = sampler.samples();
  const T samples = static_cast<T>(slice_samples);
  for (int64_t group = blockIdx.x; group < sampler.groups(); group += gridDim.x) {
    sampler.bind(group);
    // Sums of p - shift and of its square. The shift, the mean over the first step, is near enough to the
    // mean to keep the variance from cancelling.
    const int64_t first_step = int64_t{kSamples} * plan.teams;
    const T shift_samples = static_cast<T>(slice_samples < first_step ? slice_samples : first_step);
    T shift[4], sums[4] = {}, squares[4] = {};
    T entropy_sum = T(0);
#pragma unroll 1
    for (int64_t step = sampler.first_step(); step < sampler.end_step(); ++step) {
      Draw<T, kSamples> draw;
      sampler.draw(step, draw);
      const auto softmax =
          Softmax<T, kSamples>::template of<kTiles>(draw, head.samples, team, given, sampler.sample_at(draw.sample));
      if (HETNET_RARE(step == sampler.first_step()))
        for (int j = 0; j < kClasses; ++j) {
          T sum = T(0);
          for (int s = 0; s < kSamples; ++s) sum += softmax.probability(s, j);
          shift[j] = sum_over_teams(team, sampler.merge(), sum) / shift_samples;
        }
      T weighted = T(0), product = T(1);
      for (int s = 0; s < kSamples; ++s) {
        const bool valid = draw.sample + s < head.samples;
        for (int j = 0; j < kClasses; ++j) {
          // -inf times the probability 0 counts as 0
          const T p = softmax.probability(s, j), log_e = fmax(draw.utility[s][j] - softmax.max[s], kLowest<T>);
          weighted = lane<T>::fmadd(p, log_e, weighted);
          const T distance = valid ? p - shift[j] : T(0);
          sums[j] += distance;
          squares[j] = lane<T>::fmadd(distance, distance, squares[j]);
        }
        if (valid) product *= softmax.sum[s];
      }
      // The entropy of a sample is log sum - sum_k p_k log e_k. Each thread has its part of the latter; the
      // logarithm, of the samples' sums multiplied, is one thread's.
      entropy_sum -= weighted;
      if (team.lane == 0 && sampler.tile() == 0) entropy_sum += hetnet::log(product);
    }
    T sum_of_entropy[1] = {entropy_sum};
    team.reduce(sum_of_entropy, Sum<T>());
    const T total = sum_over_teams(team, sampler.merge(), sum_of_entropy[0]);
    if (sampler.live() && team.team == 0 && team.lane == 0)
      entropy[kTiles ? sampler.tile_at() : sampler.slice_at()] = total / samples;
    for (int j = 0; j < kClasses; ++j) {
      const T sum = sum_over_teams(team, sampler.merge(), sums[j]);
      const T square = sum_over_teams(team, sampler.merge(), squares[j]);
      if (!sampler.stores(j)) continue;
      const T distance = sum / samples, rest = lane<T>::fmadd(-sum, distance, square);
      mean[sampler.slice_at(j)] = shift[j] + distance;
      variance[sampler.slice_at(j)] = rest < T(0) ? T(0) : rest / samples;
    }
  }
}

}  // namespace cuda
}  // namespace hetnet
