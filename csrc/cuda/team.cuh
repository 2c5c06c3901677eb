// A thread's place among those that share a sample, a row and a block, and what they tell each other.
#pragma once

#include "plan.cuh"

namespace hetnet {
namespace cuda {

template <class T>
struct Sum {
  HETNET_DEVICE T operator()(T a, T b) const { return a + b; }
};
template <class T>
struct Max {
  HETNET_DEVICE T operator()(T a, T b) const { return fmax(a, b); }
};

template <class T>
class Team {
 public:
  const Plan plan;
  const int lane;   // of the team's threads
  const int team;   // of the row's
  const int row;    // of the block's
  const int group;  // team and row in one: of the block's teams

  HETNET_DEVICE Team(const Plan& plan_, T* scratch)
      : plan(plan_),
        lane(static_cast<int>(threadIdx.x) % plan_.team),
        team(static_cast<int>(threadIdx.x) / plan_.team % plan_.teams),
        row(static_cast<int>(threadIdx.x) / (plan_.team * plan_.teams)),
        group(static_cast<int>(threadIdx.x) / plan_.team),
        scratch_(scratch) {}

  // Shared memory written before is seen by the team after. All threads of the block call it.
  HETNET_DEVICE void sync() const {
    if (plan.team > kWarp)
      __syncthreads();
    else
      __syncwarp();
  }

  // Combines each of the numbers over the team's threads, in an order that depends on the plan alone. All
  // threads of the block call it, and the team's get the same.
  template <int kCount, class Operation>
  HETNET_DEVICE void reduce(T (&numbers)[kCount], Operation operation) {
    if (plan.team < kWarp) {
#pragma unroll 1
      for (int offset = plan.team / 2; offset > 0; offset /= 2)
        for (int i = 0; i < kCount; ++i)
          numbers[i] = operation(numbers[i], __shfl_xor_sync(kAllLanes, numbers[i], offset));
      return;
    }
    scatter(numbers, operation);
    if (plan.team == kWarp) {
      for (int i = kCount - 1; i >= 0; --i) numbers[i] = __shfl_sync(kAllLanes, numbers[0], i * (kWarp / kCount));
      return;
    }
    // Two buffers in turn: a thread may still read one while others write the other.
    const int warps = plan.threads() / kWarp, team_warps = plan.team / kWarp;
    const int warp = static_cast<int>(threadIdx.x) / kWarp, first = warp / team_warps * team_warps;
    T* const buffer = scratch_ + turn_ * warps * plan.samples_per_step;
    turn_ ^= 1;
    const int own = static_cast<int>(threadIdx.x) % kWarp;
    if (own % (kWarp / kCount) == 0) buffer[warp * kCount + own / (kWarp / kCount)] = numbers[0];
    __syncthreads();
    const Pack<T, kCount>* const of_warps = reinterpret_cast<const Pack<T, kCount>*>(buffer) + first;
    for (int i = 0; i < kCount; ++i) numbers[i] = of_warps[0].of[i];
#pragma unroll 1
    for (int w = 1; w < team_warps; ++w)
      for (int i = 0; i < kCount; ++i) numbers[i] = operation(numbers[i], of_warps[w].of[i]);
  }

 private:
  // Over a warp: number i ends up as numbers[0] of the i-th part of the warp's lanes. While there are several
  // numbers, each lane passes on half of them.
  template <int kCount, class Operation>
  HETNET_DEVICE static void scatter(T (&numbers)[kCount], Operation operation) {
    static_assert((kCount & (kCount - 1)) == 0, "halves");
    int offset = kWarp / 2;
#pragma unroll
    for (int count = kCount / 2; count > 0; count /= 2) {
      const bool upper = threadIdx.x & offset;
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const T passed = upper ? numbers[i] : numbers[i + count], kept = upper ? numbers[i + count] : numbers[i];
        numbers[i] = operation(kept, __shfl_xor_sync(kAllLanes, passed, offset));
      }
      offset /= 2;
    }
#pragma unroll
    for (; offset > 0; offset /= 2) numbers[0] = operation(numbers[0], __shfl_xor_sync(kAllLanes, numbers[0], offset));
  }

  T* scratch_;
  int turn_ = 0;
};

}  // namespace cuda
}  // namespace hetnet
