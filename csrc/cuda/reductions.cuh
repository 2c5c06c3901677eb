// What the teams of a row have of a number, combined. All threads of the block call these, and all
// teams get the same.
#pragma once

#include "softmax.cuh"

namespace hetnet {
namespace cuda {

// In the order of the teams. `merge` has a number for each thread of the block.
template <class T, class Operation>
HETNET_DEVICE T over_teams(const Team<T>& team, T* merge, T number, Operation operation) {
  if (team.plan.teams == 1) return number;
  __syncthreads();
  merge[threadIdx.x] = number;
  __syncthreads();
  const T* first = merge + team.row * team.plan.teams * team.plan.team + team.lane;
  T result = first[0];
#pragma unroll 1
  for (int t = 1; t < team.plan.teams; ++t) result = operation(result, first[t * team.plan.team]);
  return result;
}

template <class T>
HETNET_DEVICE T sum_over_teams(const Team<T>& team, T* merge, T number) {
  return over_teams(team, merge, number, Sum<T>());
}

template <class T>
HETNET_DEVICE T max_over_teams(const Team<T>& team, T* merge, T number) {
  return over_teams(team, merge, number, Max<T>());
}

}  // namespace cuda
}  // namespace hetnet
