// Kernels with bugs that the emulator must catch, and right ones that it must pass: a check that cannot fail checks
// nothing.
//
// Each argument names a case to run. An exception ends the program with status 1, a sanitizer's report with one of its
// own; test_emulator.py knows which bug must end how. Right cases compare with what CUDA gives.
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuemu.h"

namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr unsigned kLowLanes = 0x0000ffffu;
constexpr unsigned kHighLanes = 0xffff0000u;

constexpr int kFewBlocks = 4;

void expect(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(std::string("wrong: ") + what);
}

#define EXPECT(condition) expect(condition, #condition)

// ---- Threads that do not meet

__global__ void divergent_barrier(int* out) {
  if (threadIdx.x < 32) {
    __syncthreads();
    out[threadIdx.x] = 1;
  } else {
    __syncthreads();
    out[threadIdx.x] = 2;
  }
}

__global__ void gone_before_barrier(int* out, int count) {
  if (static_cast<int>(threadIdx.x) >= count) return;
  __syncthreads();
  out[threadIdx.x] = 1;
}

__global__ void lane_does_not_take_part(float* out) {
  float value = static_cast<float>(threadIdx.x);
  if (threadIdx.x < 16) value += __shfl_xor_sync(kAllLanes, value, 1);
  out[threadIdx.x] = value;
}

__global__ void lane_does_not_exist(float* out) { out[threadIdx.x] = __shfl_xor_sync(kAllLanes, 1.0f, 1); }

__global__ void lane_not_in_own_mask(float* out) { out[threadIdx.x] = __shfl_xor_sync(kLowLanes, 1.0f, 1); }

__global__ void different_primitives(int* out) {
  if (threadIdx.x < 16)
    out[threadIdx.x] = __shfl_xor_sync(kAllLanes, 1, 1);
  else
    out[threadIdx.x] = static_cast<int>(__ballot_sync(kAllLanes, 1));
}

__global__ void different_masks(int* out) {
  out[threadIdx.x] = __shfl_xor_sync(threadIdx.x == 0 ? 0b011u : 0b111u, 1, 1);
}

__global__ void barrier_and_warp_primitive(float* out) {
  if (threadIdx.x == 3)
    __syncwarp();
  else
    __syncthreads();
  out[threadIdx.x] = 1;
}

// ---- Memory

__global__ void dynamic_out_of_bounds(float* out, int count) {
  float* const shared = static_cast<float*>(cuemu::dyn_smem());
  for (int i = static_cast<int>(threadIdx.x); i <= count; i += static_cast<int>(blockDim.x)) shared[i] = 1;
  __syncthreads();
  out[threadIdx.x] = shared[0];
}

// The pointer hides the array's size from the compiler.
__device__ void store_one(float* to) { *to = 1; }

__global__ void static_out_of_bounds(float* out) {
  __shared__ float shared[32];
  store_one(shared + threadIdx.x + 1);
  __syncthreads();
  out[threadIdx.x] = shared[threadIdx.x];
}

__global__ void local_out_of_bounds(float* out, int count) {
  float local[4] = {};
  for (int i = 0; i <= count; ++i) store_one(local + i);
  out[threadIdx.x] = local[0];
}

__global__ void uninitialised_shared(float* out) {
  float* const shared = static_cast<float*>(cuemu::dyn_smem());
  if (threadIdx.x != 0) shared[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = shared[threadIdx.x ^ 1];
}

// ---- Races

template <bool kSync>
__global__ void neighbours(float* out) {
  __shared__ float shared[32];
  shared[threadIdx.x] = static_cast<float>(threadIdx.x);
  const float one = __shfl_xor_sync(kAllLanes, 1.0f, 1);  // a warp that meets here has not ordered its memory
  if (kSync) __syncwarp();
  out[32 * blockIdx.x + threadIdx.x] = shared[threadIdx.x ^ 1] * one;
}

// The halves of a warp sync, but not with each other.
__global__ void half_reads_other_half(float* out) {
  __shared__ float shared[32];
  shared[threadIdx.x] = static_cast<float>(threadIdx.x);
  __syncwarp(threadIdx.x < 16 ? kLowLanes : kHighLanes);
  if (threadIdx.x >= 16) out[threadIdx.x] = shared[threadIdx.x - 16];
}

template <bool kSync>
__global__ void reverse(float* out) {
  float* const shared = static_cast<float*>(cuemu::dyn_smem());
  shared[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (kSync) __syncthreads();
  out[blockDim.x * blockIdx.x + threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

// Without a last barrier a warp may write the next sum while another reads this one.
template <bool kSync>
__device__ float block_sum(float value) {
  __shared__ float sums[8];
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) sum += sums[warp];
  if (kSync) __syncthreads();
  return sum;
}

template <bool kSync>
__global__ void two_block_sums(float* out) {
  const float first = block_sum<kSync>(1);
  const float second = block_sum<kSync>(2);
  out[blockDim.x * blockIdx.x + threadIdx.x] = first + second;
}

__global__ void add_without_atomics(float* sum) { *sum += 1; }

// ---- Order

template <class T>
__global__ void sum_over_blocks(T* sum, T one, T step) {
  if (threadIdx.x == 0) atomicAdd(sum, one + step * static_cast<T>(blockIdx.x * blockIdx.x));
}

template <class T>
T total_over_blocks(T one, T step) {
  T sum = 0;
  cuemu::launch(sum_over_blocks<T>, 100, 32, 0, &sum, one, step);
  return sum;
}

// ---- Right kernels

__global__ void shuffles(int* out) {
  const int lane = static_cast<int>(threadIdx.x);
  int* const own = out + 7 * lane;
  own[0] = __shfl_sync(kAllLanes, lane, 5);
  own[1] = __shfl_sync(kAllLanes, lane, 9, 8);
  own[2] = __shfl_xor_sync(kAllLanes, lane, 3);
  own[3] = __shfl_down_sync(kAllLanes, lane, 3u);
  own[4] = __shfl_up_sync(kAllLanes, lane, 3u);
  own[5] = __shfl_down_sync(kAllLanes, lane, 3u, 8);
  own[6] = static_cast<int>(__shfl_xor_sync(kAllLanes, 0.5 + lane, 16) * 2);
}

__global__ void votes(int* out) {
  int* const own = out + 7 * threadIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  own[0] = __syncthreads_count(thread % 3 == 0);
  own[1] = __syncthreads_or(thread == 40);
  own[2] = __syncthreads_and(thread != 40);
  own[3] = __popc(__ballot_sync(kAllLanes, thread & 1));
  own[4] = __any_sync(kAllLanes, thread == 40);
  own[5] = __all_sync(kAllLanes, thread != 40);
  own[6] = __syncthreads_or(0);
}

__global__ void halves(float* out) {
  float value = static_cast<float>(threadIdx.x);
  if (threadIdx.x < 16)
    value += __shfl_xor_sync(kLowLanes, value, 1);
  else
    value -= __shfl_xor_sync(kHighLanes, value, 2);
  out[threadIdx.x] = value;
}

// Blocks that take part in nothing may leave as a whole, and so may warps where no barrier follows.
__global__ void early_exit(int* out) {
  if (blockIdx.x == 1) return;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  out[32 * blockIdx.x + threadIdx.x] = __shfl_xor_sync(kAllLanes, 1, 1);
}

struct Places {
  int* first;
  int width;
  int height;
  double weight;
};

__global__ void count_places(Places places, int step) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  places.width += step;  // a copy of this thread's own
  atomicAdd(places.first + block * threads + thread, places.width * places.height + static_cast<int>(places.weight));
}

__global__ void fill_shared(int* aligned) {
  float4* const shared = static_cast<float4*>(cuemu::dyn_smem());
  shared[threadIdx.x] = make_float4(1, 2, 3, 4);
  if (threadIdx.x == 0) *aligned = reinterpret_cast<uintptr_t>(shared) % 16 == 0;
}

__global__ void functions(float* out, float x) {
  float* const own = out + 12 * threadIdx.x;
  own[0] = __expf(x);
  own[1] = __logf(x);
  own[2] = __log2f(x);
  own[3] = __sinf(x);
  own[4] = __cosf(x);
  own[5] = __fdividef(1, x);
  own[6] = rsqrtf(x);
  own[7] = cuemu::ex2_approx(x);
  own[8] = cuemu::lg2_approx(x);
  own[9] = cuemu::rcp_approx(x);
  sincospif(x, own + 10, own + 11);
}

std::vector<float> function_values(float x) {
  std::vector<float> out(2 * 12);
  cuemu::launch(functions, 1, 2, 0, out.data(), x);
  for (int i = 0; i < 12; ++i) EXPECT(out[i] == out[12 + i]);  // to each thread the same
  out.resize(12);
  return out;
}

void right_shuffles() {
  std::vector<int> out(32 * 7);
  cuemu::launch(shuffles, 1, 32, 0, out.data());
  for (int lane = 0; lane < 32; ++lane) {
    const int* const own = out.data() + 7 * lane;
    EXPECT(own[0] == 5);
    EXPECT(own[1] == lane / 8 * 8 + 1);
    EXPECT(own[2] == (lane ^ 3));
    EXPECT(own[3] == (lane < 29 ? lane + 3 : lane));
    EXPECT(own[4] == (lane < 3 ? lane : lane - 3));
    EXPECT(own[5] == (lane % 8 < 5 ? lane + 3 : lane));
    EXPECT(own[6] == 2 * (lane ^ 16) + 1);
  }
}

void right_votes() {
  std::vector<int> out(64 * 7);
  cuemu::launch(votes, 1, 64, 0, out.data());
  for (int thread = 0; thread < 64; ++thread) {
    const int* const own = out.data() + 7 * thread;
    EXPECT(own[0] == 22);
    EXPECT(own[1] != 0);
    EXPECT(own[2] == 0);
    EXPECT(own[3] == 16);
    EXPECT((own[4] != 0) == (thread >= 32));
    EXPECT((own[5] != 0) == (thread < 32));
    EXPECT(own[6] == 0);
  }
}

void right_halves() {
  std::vector<float> out(32);
  cuemu::launch(halves, 1, 32, 0, out.data());
  for (int lane = 0; lane < 32; ++lane)
    EXPECT(out[lane] == static_cast<float>(lane < 16 ? lane + (lane ^ 1) : lane - (lane ^ 2)));
}

void right_exits() {
  std::vector<int> out(3 * 32);
  cuemu::launch(early_exit, 3, 64, 0, out.data());
  for (int i = 0; i < 3 * 32; ++i) EXPECT(out[i] == (i / 32 != 1));
}

void right_grid() {
  const dim3 grid(3, 4, 5), block(4, 3, 2);
  std::vector<int> out(3 * 4 * 5 * 4 * 3 * 2);
  cuemu::launch(count_places, grid, block, 0, Places{out.data(), 2, 5, 7.0}, 1);
  for (const int count : out) EXPECT(count == 3 * 5 + 7);
}

void right_shared_memory() {
  int aligned = 0;
  cuemu::launch(fill_shared, 1, 3, 3 * sizeof(float4), &aligned);
  EXPECT(aligned != 0);
}

void right_syncs() {
  std::vector<float> out(kFewBlocks * 128);
  cuemu::launch(neighbours<true>, kFewBlocks, 32, 0, out.data());
  for (int i = 0; i < kFewBlocks * 32; ++i) EXPECT(out[i] == static_cast<float>(i % 32 ^ 1));
  cuemu::launch(reverse<true>, kFewBlocks, 128, 128 * sizeof(float), out.data());
  for (int i = 0; i < kFewBlocks * 128; ++i) EXPECT(out[i] == static_cast<float>(127 - i % 128));
  cuemu::launch(two_block_sums<true>, kFewBlocks, 128, 0, out.data());
  for (const float sum : out) EXPECT(sum == 128 * 3);
}

void right_functions() {
  const float x = 1.7f;
  const std::vector<float> values = function_values(x);
  const double exact[12] = {std::exp(double{x}),  std::log(double{x}), std::log2(double{x}),     std::sin(double{x}),
                            std::cos(double{x}),  1 / double{x},       1 / std::sqrt(double{x}), std::exp2(double{x}),
                            std::log2(double{x}), 1 / double{x},       std::sin(M_PI * x),       std::cos(M_PI * x)};
  for (int i = 0; i < 12; ++i) EXPECT(std::abs(values[i] - exact[i]) <= 2e-7 * std::abs(exact[i]));
  EXPECT(__umulhi(0x80000000u, 6) == 3);
  EXPECT(__clz(1) == 31 && __clz(0) == 32 && __ffs(8) == 4 && __popc(7) == 3);
  EXPECT(__uint_as_float(0x3f800000u) == 1 && __float_as_int(1) == 0x3f800000);
}

void right_fuzz() {
  const float x = 1.7f;
  cuemu::set_fuzz(0);
  const std::vector<float> exact = function_values(x);
  cuemu::set_fuzz(4);
  const std::vector<float> moved = function_values(x);
  EXPECT(moved == function_values(x));
  EXPECT(moved != exact);
  for (int i = 0; i < 12; ++i) EXPECT(std::abs(__float_as_int(moved[i]) - __float_as_int(exact[i])) <= 4);
}

// A launch that was given up leaves nothing behind that disturbs the next.
void right_after_failure() {
  std::vector<int> out(64);
  for (int i = 0; i < 3; ++i) {
    std::string message;
    try {
      cuemu::launch(divergent_barrier, 1, 64, 0, out.data());
    } catch (const std::runtime_error& error) {
      message = error.what();
    }
    EXPECT(message.find("divergent") != std::string::npos);
    right_shuffles();
  }
}

void refused_sizes() {
  std::vector<int> out(2048);
  const auto refused = [&](dim3 grid, dim3 block, std::size_t shared_bytes) {
    try {
      cuemu::launch(gone_before_barrier, grid, block, shared_bytes, out.data(), 2048);
    } catch (const std::runtime_error&) {
      return true;
    }
    return false;
  };
  EXPECT(!refused(1, 1024, 227 * 1024));
  EXPECT(refused(0, 32, 0));
  EXPECT(refused(dim3(1, 65536), 32, 0));
  EXPECT(refused(1, 0, 0));
  EXPECT(refused(1, 1025, 0));
  EXPECT(refused(1, dim3(64, 32), 0));
  EXPECT(refused(1, 32, 227 * 1024 + 1));
}

// One process compares orders.
void orders_in_one_process() {
  const auto total = [](const char* order) {
    cuemu::set_order(order);
    return total_over_blocks<float>(0.1f, 1e5f);
  };
  EXPECT(total("ascending") == total("ascending"));
  EXPECT(total("random:3") == total("random:3"));
  EXPECT(total("ascending") != total("descending"));
  EXPECT(total("ascending") != total("random:3"));
  EXPECT(total("random:3") != total("random:4"));
}

const std::map<std::string, std::function<void()>>& cases() {
  static std::vector<float> floats(1024);
  static std::vector<int> ints(1024);
  float* const f = floats.data();
  int* const i = ints.data();
  using cuemu::launch;
  static const std::map<std::string, std::function<void()>> all = {
      {"divergent_barrier", [=] { launch(divergent_barrier, 1, 64, 0, i); }},
      {"gone_before_barrier", [=] { launch(gone_before_barrier, 1, 64, 0, i, 40); }},
      {"lane_does_not_take_part", [=] { launch(lane_does_not_take_part, 1, 32, 0, f); }},
      {"lane_does_not_exist", [=] { launch(lane_does_not_exist, 1, 16, 0, f); }},
      {"lane_not_in_own_mask", [=] { launch(lane_not_in_own_mask, 1, 32, 0, f); }},
      {"different_primitives", [=] { launch(different_primitives, 1, 32, 0, i); }},
      {"different_masks", [=] { launch(different_masks, 1, 3, 0, i); }},
      {"barrier_and_warp_primitive", [=] { launch(barrier_and_warp_primitive, 1, 32, 0, f); }},
      {"dynamic_out_of_bounds", [=] { launch(dynamic_out_of_bounds, 1, 32, 33 * sizeof(float), f, 33); }},
      {"static_out_of_bounds", [=] { launch(static_out_of_bounds, 1, 32, 0, f); }},
      {"local_out_of_bounds", [=] { launch(local_out_of_bounds, 1, 32, 0, f, 4); }},
      {"uninitialised_shared",
       [=] {
         launch(uninitialised_shared, 1, 32, 32 * sizeof(float), f);
         for (int lane = 0; lane < 32; ++lane) EXPECT(std::isnan(f[lane]) == (lane == 1));
       }},
      {"missing_syncwarp", [=] { launch(neighbours<false>, kFewBlocks, 32, 0, f); }},
      {"half_reads_other_half", [=] { launch(half_reads_other_half, 1, 32, 0, f); }},
      {"missing_barrier", [=] { launch(reverse<false>, kFewBlocks, 128, 128 * sizeof(float), f); }},
      {"missing_last_barrier", [=] { launch(two_block_sums<false>, kFewBlocks, 128, 0, f); }},
      {"add_without_atomics", [=] { launch(add_without_atomics, 1, 64, 0, f); }},
      {"float_sum_over_blocks", [] { std::printf("%.9g\n", total_over_blocks<float>(0.1f, 1e5f)); }},
      {"integer_sum_over_blocks", [] { std::printf("%d\n", total_over_blocks<int>(1, 10)); }},
      {"orders_in_one_process", orders_in_one_process},
      {"right_shuffles", right_shuffles},
      {"right_votes", right_votes},
      {"right_halves", right_halves},
      {"right_exits", right_exits},
      {"right_grid", right_grid},
      {"right_shared_memory", right_shared_memory},
      {"right_syncs", right_syncs},
      {"right_functions", right_functions},
      {"right_fuzz", right_fuzz},
      {"right_after_failure", right_after_failure},
      {"refused_sizes", refused_sizes},
  };
  return all;
}

}  // namespace

int main(int count, char** arguments) {
  for (int i = 1; i < count; ++i) {
    try {
      cases().at(arguments[i])();
    } catch (const std::exception& error) {
      std::printf("%s: %s\n", arguments[i], error.what());
      return 1;
    }
  }
  return 0;
}
