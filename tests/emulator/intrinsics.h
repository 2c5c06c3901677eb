// The functions that CUDA gives device code.
//
// Its approximate ones have errors that differ from those of the C library, so CUEMU_FUZZ adds some to theirs: always
// the same to the same result, as a GPU's functions are functions too.
#pragma once

#include <math.h>  // unlike <cmath>, declares fmax, exp, ... of float and double outside std, as CUDA does

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "engine.h"

namespace cuemu {

template <class T>
uint64_t to_bits(T value) {
  static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

template <class T>
T from_bits(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// Another number that is at most set_fuzz() units in the last place away.
inline float approximate(float exact) {
  const int fuzz = settings().fuzz;
  if (fuzz == 0 || !std::isnormal(exact)) return exact;
  const auto bits = static_cast<uint32_t>(to_bits(exact));
  const auto step = static_cast<int32_t>(scramble(bits) % (2 * static_cast<unsigned>(fuzz) + 1)) - fuzz;
  const auto moved = from_bits<float>(bits + static_cast<uint32_t>(step));
  return std::isnormal(moved) ? moved : exact;
}

// The instructions of PTX that have no function in CUDA: ex2.approx.ftz.f32, ...
inline float flush_to_zero(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }
inline float ex2_approx(float x) { return approximate(flush_to_zero(std::exp2(flush_to_zero(x)))); }
inline float lg2_approx(float x) { return approximate(std::log2(flush_to_zero(x))); }
inline float rcp_approx(float x) { return approximate(flush_to_zero(1 / flush_to_zero(x))); }

// The `width` lanes of the warp among which a lane shuffles.
struct Segment {
  int lane;
  int first;
  int end;

  explicit Segment(int width) : lane(engine.lane()), first(lane & ~(width - 1)), end(first + width) {}

  int own_unless_inside(int source) const { return source >= first && source < end ? source : lane; }
};

template <class T>
T shuffle(unsigned mask, T value, int source, Place place) {
  return from_bits<T>(engine.wait_for_warp(Primitive::kShuffle, mask, to_bits(value), source, place));
}

inline unsigned ballot(unsigned mask, bool vote, Place place) {
  return static_cast<unsigned>(engine.wait_for_warp(Primitive::kBallot, mask, vote, 0, place));
}

}  // namespace cuemu

// Barriers

inline void __syncthreads(cuemu::Place place = cuemu::Place::current()) { cuemu::engine.wait_for_block(false, place); }

inline int __syncthreads_or(int vote, cuemu::Place place = cuemu::Place::current()) {
  return cuemu::engine.wait_for_block(vote != 0, place).any;
}

inline int __syncthreads_and(int vote, cuemu::Place place = cuemu::Place::current()) {
  return cuemu::engine.wait_for_block(vote != 0, place).all;
}

inline int __syncthreads_count(int vote, cuemu::Place place = cuemu::Place::current()) {
  return cuemu::engine.wait_for_block(vote != 0, place).count;
}

inline void __syncwarp(unsigned mask = 0xffffffffu, cuemu::Place place = cuemu::Place::current()) {
  cuemu::engine.wait_for_warp(cuemu::Primitive::kSync, mask, 0, 0, place);
}

inline void __threadfence() {}

inline void __threadfence_block() {}

// Warp primitives

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = cuemu::kWarpSize,
              cuemu::Place place = cuemu::Place::current()) {
  return cuemu::shuffle(mask, value, cuemu::Segment(width).first + (source & (width - 1)), place);
}

// CUDA's segments bound only from above here: a lane may read from an earlier segment.
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = cuemu::kWarpSize,
                  cuemu::Place place = cuemu::Place::current()) {
  const cuemu::Segment segment(width);
  const int source = segment.lane ^ lane_mask;
  return cuemu::shuffle(mask, value, source < segment.end ? source : segment.lane, place);
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = cuemu::kWarpSize,
                   cuemu::Place place = cuemu::Place::current()) {
  const cuemu::Segment segment(width);
  return cuemu::shuffle(mask, value, segment.own_unless_inside(segment.lane + static_cast<int>(delta)), place);
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = cuemu::kWarpSize,
                 cuemu::Place place = cuemu::Place::current()) {
  const cuemu::Segment segment(width);
  return cuemu::shuffle(mask, value, segment.own_unless_inside(segment.lane - static_cast<int>(delta)), place);
}

inline unsigned __ballot_sync(unsigned mask, int vote, cuemu::Place place = cuemu::Place::current()) {
  return cuemu::ballot(mask, vote != 0, place);
}

inline int __any_sync(unsigned mask, int vote, cuemu::Place place = cuemu::Place::current()) {
  return cuemu::ballot(mask, vote != 0, place) != 0;
}

inline int __all_sync(unsigned mask, int vote, cuemu::Place place = cuemu::Place::current()) {
  return cuemu::ballot(mask, vote != 0, place) == mask;
}

// Atomics. Real ones, so that ThreadSanitizer tells them from accesses that race.

template <class T>
T atomicAdd(T* address, std::common_type_t<T> value) {
  cuemu::engine.let_others_run();
  T old;
  __atomic_load(address, &old, __ATOMIC_RELAXED);
  T sum;
  do {
    sum = old + value;
  } while (!__atomic_compare_exchange(address, &old, &sum, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return old;
}

// Approximate functions

inline float __expf(float x) { return cuemu::approximate(std::exp(x)); }

inline float __logf(float x) { return cuemu::approximate(std::log(x)); }

inline float __log2f(float x) { return cuemu::approximate(std::log2(x)); }

inline float __sinf(float x) { return cuemu::approximate(std::sin(x)); }

inline float __cosf(float x) { return cuemu::approximate(std::cos(x)); }

inline void __sincosf(float x, float* sine, float* cosine) {
  *sine = __sinf(x);
  *cosine = __cosf(x);
}

inline void sincospif(float x, float* sine, float* cosine) {
  const double angle = std::fmod(static_cast<double>(x), 2.0) * M_PI;
  *sine = cuemu::approximate(static_cast<float>(std::sin(angle)));
  *cosine = cuemu::approximate(static_cast<float>(std::cos(angle)));
}

inline float __fdividef(float x, float y) { return cuemu::approximate(x / y); }

inline float rsqrtf(float x) { return cuemu::approximate(1 / std::sqrt(x)); }

// Exactly rounded ones, which no compiler may fuse

inline float __frcp_rn(float x) { return 1 / x; }

inline float __fsqrt_rn(float x) { return std::sqrt(x); }

inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }

inline float __fadd_rn(float x, float y) {
  const volatile float sum = x + y;
  return sum;
}

inline float __fmul_rn(float x, float y) {
  const volatile float product = x * y;
  return product;
}

// Bits and memory

inline unsigned __umulhi(unsigned x, unsigned y) { return static_cast<unsigned>(uint64_t{x} * y >> 32); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }

inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }

inline int __ffs(int x) { return __builtin_ffs(x); }

inline unsigned __float_as_uint(float x) { return static_cast<unsigned>(cuemu::to_bits(x)); }

inline float __uint_as_float(unsigned bits) { return cuemu::from_bits<float>(bits); }

inline int __float_as_int(float x) { return static_cast<int>(__float_as_uint(x)); }

inline float __int_as_float(int bits) { return __uint_as_float(static_cast<unsigned>(bits)); }

template <class T>
T __ldg(const T* address) {
  return *address;
}
