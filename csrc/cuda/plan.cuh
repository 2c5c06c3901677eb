// How the threads of a block share the work of a head.
#pragma once

#include "../core/head.h"
#include "device.cuh"

namespace hetnet {
namespace cuda {

constexpr int kWarp = 32;
constexpr int kClasses = 4;        // of a thread
constexpr int kMostThreads = 256;  // of a block
constexpr int kUsualThreads = 128;
constexpr int kMostSlices = 16;
constexpr int kFewestSliceSteps = 8;  // with fewer a row's parameters are read too often
constexpr int kFewestThreads = 64;    // with fewer a block does not keep its share of a processor busy

// Threads for which a processor has registers: 128 for each of 512, 168 for each of 384. That of a kernel is
// its budget of registers, which are 255 in double precision.
template <class T>
constexpr int kThreadsWithFewRegisters = sizeof(T) == 4 ? 512 : kMostThreads;
template <class T>
constexpr int kThreadsWithManyRegisters = sizeof(T) == 4 ? 384 : kMostThreads;

// Shared memory of a thread, with which as many fit onto a processor as its registers allow: one of compute
// capability 8.0 has 164 KB, and later ones no less but for those of a desktop.
template <class T>
constexpr int64_t kBytesPerThread = 160 * 1024 / kThreadsWithManyRegisters<T>;

// A team of threads shares a sample, each with four of its classes; a thread's steps are of several
// samples. The teams of a row share its samples, and a block has several rows where these are few.
// These three are powers of two. A plan depends on neither the number of rows nor, but where the device has too little
// shared memory, on the device, so that a row's result does not either.
struct Plan {
  int team, teams, rows;
  int log_sharing;  // 2 to this many teams of a row have one sum of the factor's gradient among them
  int tiles;        // runs of a team's classes: more than one where there are more classes than its threads have
  int samples_per_step;
  // Runs of samples, for blocks of their own: more than one where these are many, so that few rows keep a GPU busy too.
  int slices;
  int64_t slice_steps;
  bool factor_in_shared;  // else the factor and its gradient are kept in global memory, where they are slower
  int64_t shared_bytes;

  __host__ __device__ int threads() const { return team * teams * rows; }
  __host__ __device__ int sharing() const { return 1 << log_sharing; }
  __host__ __device__ int tile_classes() const { return kClasses * team; }
  __host__ __device__ int64_t row_samples_per_step() const { return int64_t{samples_per_step} * teams; }
  __host__ __device__ int64_t steps(int64_t samples) const {
    return (samples + row_samples_per_step() - 1) / row_samples_per_step();
  }
  // Of a slice.
  __host__ __device__ int64_t samples_in(int slice, int64_t samples) const {
    const int64_t whole = slice_steps * row_samples_per_step(), left = samples - slice * whole;
    return left < whole ? left : whole;
  }
  __host__ __device__ int64_t groups(int64_t row_count) const { return (row_count + rows - 1) / rows; }
};

// The rows that one launch works on: all of them, or as many as the memory for tiles allows.
struct Batch {
  int64_t first_row, rows;
  void* factors;  // memory for each block's factors and their gradients, where they are not in shared memory
  void* lower;    // the Cholesky factors, where draws go through them: [row][class][class]
};

// Where a block's memory begins for each purpose, in elements: cheap to ask for anew, so that it takes no
// registers.
template <class T>
struct Layout {
  // of shared memory:
  int merge;    // [row][team][thread]: what teams of a row tell each other
  int scratch;  // [2][warp][sample]: what warps of a team tell each other
  int target;   // [2][row][team][sample]: the target's utility
  int eta;      // [2][row][team][factor][sample]: of two steps
  int64_t shared_size;
  // of shared memory as well, or global memory:
  int factor;        // [row][factor][class]
  int64_t gradient;  // [row][team / sharing][factor][class], for a backward
  int64_t factors_size;
  // of shared memory again:
  int64_t delta;  // [row][team][sample][class]: what teams with one sum tell each other

  __host__ __device__ Layout(const Plan& plan, int64_t factors, bool backward) {
    const int all_teams = plan.rows * plan.teams, q = plan.samples_per_step;
    const int64_t eta_size = 2 * factors * all_teams * q;
    merge = 0;
    scratch = merge + round(plan.threads());
    target = scratch + round(plan.team > kWarp ? 2 * q * (plan.threads() / kWarp) : 0);
    eta = target + round(2 * all_teams * q);
    const int64_t eta_end = eta + round(eta_size);
    factor = 0;
    gradient = round(plan.rows * factors * plan.tile_classes());
    factors_size = gradient + (backward ? round((all_teams >> plan.log_sharing) * factors * plan.tile_classes()) : 0);
    if (plan.factor_in_shared) {
      factor = static_cast<int>(eta_end);
      gradient += eta_end;
    }
    delta = eta_end + (plan.factor_in_shared ? factors_size : 0);
    shared_size = delta + (plan.log_sharing > 0 ? q * kClasses * plan.threads() : 0);
  }

 private:
  // Up to a multiple of four, which are loaded together.
  template <class Int>
  __host__ __device__ static Int round(Int count) {
    return (count + 3) / 4 * 4;
  }
};

// `most_shared_bytes` is what a block may have on the device.
template <class T>
Plan make_plan(const Head<T>& head, int samples_per_step, bool backward, int64_t most_shared_bytes) {
  const auto within = [&](Plan& plan, int64_t bytes) {
    plan.shared_bytes = Layout<T>(plan, head.factors, backward).shared_size * static_cast<int64_t>(sizeof(T));
    return plan.shared_bytes <= bytes;
  };
  const auto fits = [&](Plan& plan) { return within(plan, most_shared_bytes); };
  // Of a team: as many others as make a usual block, with as many sums as it can have in comfort, or fewer
  // of either where that does not fit.
  const auto with_team = [&](int team, bool factor_in_shared, int fewest_threads) {
    const int64_t steps = (head.samples + samples_per_step - 1) / samples_per_step;
    Plan plan{team, 1, 1, 0, 1, samples_per_step, 1, 0, factor_in_shared, 0};
    while (2 * plan.teams <= steps && plan.threads() < kUsualThreads) plan.teams *= 2;
    while (plan.threads() < kUsualThreads) plan.rows *= 2;
    if (backward)
      while (!within(plan, kBytesPerThread<T> * plan.threads()) && plan.sharing() < plan.teams) ++plan.log_sharing;
    while (!fits(plan) && plan.threads() > fewest_threads && plan.rows * plan.teams > 1) {
      (plan.rows > 1 ? plan.rows : plan.teams) /= 2;
      while (plan.sharing() > plan.teams) --plan.log_sharing;
    }
    return plan;
  };

  int team = 1;
  while (kClasses * team < head.classes && team <= kMostThreads) team *= 2;
  // Tiles draw twice, so that one is best. Where there are several they are of a warp, which needs no barriers.
  if (team > kMostThreads) team = kWarp;
  Plan plan = with_team(team, true, kFewestThreads);
  if (!fits(plan) && team > kWarp) plan = with_team(kWarp, true, kFewestThreads);
  // The noise of so many factors may only fit where fewer teams have threads to spare.
  for (; !fits(plan) && team <= kMostThreads; team *= 2) plan = with_team(team, false, kWarp);
  plan.tiles = static_cast<int>((head.classes + plan.tile_classes() - 1) / plan.tile_classes());

  const int64_t steps = plan.steps(head.samples), fit = backward || plan.tiles > 1 ? 1 : steps / kFewestSliceSteps;
  const int64_t slices = fit < 1 ? 1 : fit < kMostSlices ? fit : kMostSlices;
  plan.slice_steps = (steps + slices - 1) / slices;
  plan.slices = static_cast<int>((steps + plan.slice_steps - 1) / plan.slice_steps);
  return plan;
}

}  // namespace cuda
}  // namespace hetnet
