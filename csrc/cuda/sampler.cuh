// A thread's share of a row's parameters, and the utilities that it draws with them.
#pragma once

#include "../core/center.h"
#include "../core/normal.h"
#include "../core/philox.h"
#include "kernels.h"
#include "team.cuh"

namespace hetnet {
namespace cuda {

template <class T>
HETNET_DEVICE Head<T> read(const DeviceHead<T>& device_head) {
  Head<T> head = device_head.head;
  const T temperature = *device_head.temperature;
  head.temperature = temperature > T(0) ? temperature : kNaN<T>;
  head.seed = static_cast<uint64_t>(device_head.seed[0]);
  return head;
}

// The same number, which all threads have, where the compiler may know that they do: then a warp keeps what is
// made of it once, and not in each thread's registers.
HETNET_DEVICE uint64_t of_all_threads(uint64_t number) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const uint32_t low = __reduce_or_sync(kAllLanes, static_cast<uint32_t>(number));
  const uint32_t high = __reduce_or_sync(kAllLanes, static_cast<uint32_t>(number >> 32));
  return low | static_cast<uint64_t>(high) << 32;
#else
  return number;
#endif
}

// Consecutive samples of a row, in four of its classes.
template <class T, int kSamples>
struct Draw {
  uint32_t sample;  // the first; from the head's number of samples on they count for nothing
  T eps[kSamples][4];
  T utility[kSamples][4];
  const T* eta;  // [factor][sample]

  HETNET_DEVICE Pack<T, kSamples> factor_noise(int64_t r) const {
    return *reinterpret_cast<const Pack<T, kSamples>*>(eta + r * kSamples);
  }
};

// What the draws are for. Only a backward has the factor's gradient in memory; only a Cholesky draw has no noise but
// the factors'.
enum Purpose { kForward, kBackward, kCholesky };

// What every kernel begins with: the thread's place, and a row's parameters.
template <class T, int kSamples, Purpose kPurpose>
class Sampler {
 public:
  const Head<T> head;
  const Batch batch;
  Team<T> team;

  HETNET_DEVICE Sampler(const DeviceHead<T>& device_head, const Plan& plan, const Batch& batch_)
      : head(read(device_head)),
        batch(batch_),
        team(plan, shared() + Layout<T>(plan, head.factors, kPurpose == kBackward).scratch),
        key_(of_all_threads(head.seed)),
        first_class_(tile() * plan.tile_classes() + kClasses * team.lane),
        inverse_temperature_(T(1) / head.temperature) {}

  // Moves on to a group of the batch's rows, one for each of the block's. Rows past the last one are
  // taken for it, so that threads stay together.
  HETNET_DEVICE void place(int64_t group) {
    first_row_ = batch.first_row + group * team.plan.rows;
    const uint64_t row_in_stream = head.stream_row(row());
    row_low_ = static_cast<uint32_t>(row_in_stream);
    row_high_ = static_cast<uint32_t>(row_in_stream >> 32);
  }

  // The same, and reads the rows' parameters. All threads of the block call it.
  HETNET_DEVICE void bind(int64_t group) {
    place(group);
    __syncthreads();  // the last row's factor has been read
    stage_factor();
    __syncthreads();
    T zero = T(0);
    const Quad<T>* const factor = own_factor();
#pragma unroll 1
    for (int64_t r = 0; r < head.factors; ++r)
      for (int j = 0; j < kClasses; ++j) zero += factor[r * team.plan.team].of[j] * T(0);
    T loc[4];
    for (int j = 0; j < kClasses; ++j) {
      const int64_t k = first_class_ + j;
      loc[j] = -kInfinity<T>;
      scale_[j] = T(0);
      if (k >= head.classes) continue;
      loc[j] = head.loc.data[row() * head.loc.row_stride + k];
      if (kPurpose == kCholesky) continue;  // whose factors are NaN where the scale is not finite
      scale_[j] = head.scale.data[row() * head.scale.row_stride + k];
      zero += scale_[j] * T(0);
    }
    // An infinite scale would give either infinity as a utility, and -inf passes for a masked class:
    // the whole row is to be NaN instead.
    T zeros[1] = {zero};
    team.reduce(zeros, Sum<T>());
    for (int j = 0; j < kClasses; ++j) center_[j] = Center<T>(loc[j], head.temperature, zeros[0]);
  }

  HETNET_DEVICE int64_t groups() const { return team.plan.groups(batch.rows); }
  HETNET_DEVICE int64_t steps() const { return team.plan.steps(head.samples); }
  // The block's slice of samples, its steps and number of samples.
  HETNET_DEVICE static int slice() { return static_cast<int>(blockIdx.z); }
  HETNET_DEVICE int64_t first_step() const { return slice() * team.plan.slice_steps; }
  HETNET_DEVICE int64_t end_step() const {
    const int64_t end = first_step() + team.plan.slice_steps;
    return end < steps() ? end : steps();
  }
  HETNET_DEVICE int64_t samples() const { return team.plan.samples_in(slice(), head.samples); }
  HETNET_DEVICE int64_t first_row() const { return first_row_; }  // of the block's
  // Cheap to ask for anew, so that they take no registers.
  HETNET_DEVICE int64_t row() const { return live() ? first_row_ + team.row : batch.first_row + batch.rows - 1; }
  // The row is one of the batch's.
  HETNET_DEVICE bool live() const { return first_row_ + team.row < batch.first_row + batch.rows; }
  HETNET_DEVICE static int tile() { return static_cast<int>(blockIdx.y); }
  HETNET_DEVICE T scale(int j) const { return scale_[j]; }
  HETNET_DEVICE T center(int j) const { return center_[j].high; }
  // Where numbers of each sample, each slice and each tile are kept for the batch: [row][sample], [slice][row] and
  // [tile][row].
  HETNET_DEVICE int64_t sample_at(int64_t sample) const { return (row() - batch.first_row) * head.samples + sample; }
  HETNET_DEVICE int64_t slice_at() const { return int64_t{slice()} * batch.rows + row() - batch.first_row; }
  HETNET_DEVICE int64_t tile_at() const { return int64_t{tile()} * batch.rows + row() - batch.first_row; }

  HETNET_DEVICE Layout<T> layout() const { return Layout<T>(team.plan, head.factors, kPurpose == kBackward); }
  HETNET_DEVICE static T* shared() { return reinterpret_cast<T*>(shared_memory()); }
  HETNET_DEVICE T* merge() const { return shared() + layout().merge; }
  // The block's factors and their gradients.
  HETNET_DEVICE T* factors() const {
    if (team.plan.factor_in_shared) return shared();
    const int64_t block = (int64_t{blockIdx.z} * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    return static_cast<T*>(batch.factors) + block * layout().factors_size;
  }
  // The row's factor, of the tile's classes, scaled.
  HETNET_DEVICE T* row_factor() const {
    return factors() + layout().factor + team.row * head.factors * team.plan.tile_classes();
  }
  // Of the thread's classes; that of the next factor is a team's length further.
  HETNET_DEVICE const Quad<T>* own_factor() const { return reinterpret_cast<const Quad<T>*>(row_factor()) + team.lane; }
  // Whether the thread stores results of its class j, and where.
  HETNET_DEVICE bool stores(int j) const { return live() && team.team == 0 && has(j); }
  HETNET_DEVICE int64_t at(int j) const { return row() * head.classes + first_class_ + j; }
  HETNET_DEVICE int64_t slice_at(int j) const { return slice_at() * head.classes + first_class_ + j; }
  HETNET_DEVICE int first_class() const { return first_class_; }
  HETNET_DEVICE bool has(int j) const { return first_class_ + j < head.classes; }
  HETNET_DEVICE bool masked(int j) const { return center_[j].high == -kInfinity<T>; }
  // The first sample of the team's step.
  HETNET_DEVICE int64_t first_sample(int64_t step) const { return (step * team.plan.teams + team.team) * kSamples; }

  // The draw of a step, from 0 on. Two places in shared memory take turns: a thread may still read one while
  // another writes the other. So threads meet before they begin anew. All threads of the block call it.
  HETNET_DEVICE void draw(int64_t step, Draw<T, kSamples>& draw) {
    draw.sample = first_sample(step);
    T* const eta = shared() + layout().eta +
                   ((step & 1) * team.plan.rows * team.plan.teams + team.group) * head.factors * kSamples;
    draw.eta = eta;
    fill_eta(draw.sample, eta);
    T noise[kSamples][4];
    for (int s = 0; s < kSamples; ++s) {
      if constexpr (kPurpose == kCholesky)
        fill(draw.eps[s], T(0));
      else
        normals(draw.sample + s, static_cast<uint32_t>(first_class_ / 4), draw.eps[s]);
      fill(noise[s], T(0));
    }
    const Quad<T>* factor = own_factor();
#pragma unroll 1
    for (int64_t r = 0; r < head.factors; ++r) {
      const Quad<T> numbers = *factor;
      const Pack<T, kSamples> of_samples = draw.factor_noise(r);
      factor += team.plan.team;
      for (int s = 0; s < kSamples; ++s)
        for (int j = 0; j < kClasses; ++j) noise[s][j] = lane<T>::fmadd(numbers.of[j], of_samples.of[s], noise[s][j]);
    }
    // The diagonal's noise last: where it is large, the products would be rounded to its last place.
    for (int s = 0; s < kSamples; ++s)
      for (int j = 0; j < kClasses; ++j) {
        noise[s][j] = lane<T>::fmadd(scale_[j], draw.eps[s][j], noise[s][j]);
        draw.utility[s][j] = center_[j].utility(noise[s][j], inverse_temperature_);
      }
  }

 private:
  // Four normals, of dimensions 4 block to 4 block + 3.
  HETNET_DEVICE void normals(int64_t sample, uint32_t block, T (&out)[4]) const {
    const PhiloxBlock<uint32_t> words = philox4x32_10(block, static_cast<uint32_t>(sample), row_low_, row_high_, key_);
    normal_pair<T>(words.w0, words.w1, out[0], out[1]);
    normal_pair<T>(words.w2, words.w3, out[2], out[3]);
  }

  // The team's factors for its samples. They follow the classes in the stream, whose number need not be
  // a multiple of four, but for those of a Cholesky draw, which has no other noise.
  HETNET_DEVICE void fill_eta(int64_t sample, T* eta) const {
    if (head.factors == 0) return;
    const int64_t first = kPurpose == kCholesky ? 0 : head.classes;
    const int64_t first_block = first / 4, blocks = (first + head.factors + 3) / 4 - first_block;
#pragma unroll 1
    for (int64_t i = team.lane; i < blocks * kSamples; i += team.plan.team) {
      const int64_t block = first_block + i / kSamples, s = i % kSamples;
      T four[4];
      normals(sample + s, static_cast<uint32_t>(block), four);
      for (int j = 0; j < 4; ++j) {
        const int64_t r = 4 * block + j - first;
        if (r >= 0 && r < head.factors) eta[r * kSamples + s] = four[j];
      }
    }
    team.sync();
  }

  // Copies the row's factor, scaled, with the classes of a factor side by side.
  HETNET_DEVICE void stage_factor() {
    T* const factor = row_factor();
    const int tile_classes = team.plan.tile_classes();
    const int64_t first = int64_t{tile()} * tile_classes;
    const int64_t left = head.classes - first, here = left < tile_classes ? left : tile_classes;
    const int64_t count = head.factors * tile_classes;
    const T* source = kPurpose == kCholesky
                          ? static_cast<const T*>(batch.lower) + (row() - batch.first_row) * head.classes * head.factors
                          : head.factor.data + row() * head.factor.row_stride;
    source += first * head.factors;
    const T* scale = head.factor_scale.data + row() * head.factor_scale.row_stride;
    // Consecutive threads read consecutive numbers.
#pragma unroll 1
    for (int64_t i = team.team * team.plan.team + team.lane; i < count; i += team.plan.teams * team.plan.team) {
      const int64_t k = i / head.factors, r = i % head.factors;
      T number = k < here ? source[i] : T(0);
      if (k < here && head.factor_scale) number *= scale[r];
      factor[r * tile_classes + k] = number;
    }
  }

  const PhiloxKey key_;
  const int first_class_;
  int64_t first_row_ = 0;
  uint32_t row_low_ = 0, row_high_ = 0;
  const T inverse_temperature_;
  T scale_[4];
  Center<T> center_[4];
};

}  // namespace cuda
}  // namespace hetnet
