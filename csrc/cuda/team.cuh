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

  // Combines each of the numbers over the team's threads, in an order that is the same for all of
  // them. All threads of the block call it.
  template <int kCount, class Operation>
  HETNET_DEVICE void reduce(T (&numbers)[kCount], Operation operation) {
    for (int offset = (plan.team < kWarp ? plan.team : kWarp) / 2; offset > 0; offset /= 2)
      for (int i = 0; i < kCount; ++i)
        numbers[i] = operation(numbers[i], __shfl_xor_sync(kAllLanes, numbers[i], offset));
    if (plan.team <= kWarp) return;
    // Two buffers in turn: a thread may still read one while others write the other.
    const int warps = plan.threads() / kWarp, team_warps = plan.team / kWarp;
    const int warp = static_cast<int>(threadIdx.x) / kWarp, first = warp / team_warps * team_warps;
    T* buffer = scratch_ + turn_ * (2 * plan.samples_per_step * warps);
    turn_ ^= 1;
    if (threadIdx.x % kWarp == 0)
      for (int i = 0; i < kCount; ++i) buffer[i * warps + warp] = numbers[i];
    __syncthreads();
    for (int i = 0; i < kCount; ++i) {
      numbers[i] = buffer[i * warps + first];
      for (int w = 1; w < team_warps; ++w) numbers[i] = operation(numbers[i], buffer[i * warps + first + w]);
    }
  }

 private:
  T* scratch_;
  int turn_ = 0;
};

}  // namespace cuda
}  // namespace hetnet
