// The few primitives that the numerics core asks of a lane type.
//
// A lane type is `float` or `double` (one CUDA thread, or scalar code) or a vector of
// them (cpu/vec.h). Everything in core/ is written once against `lane<V>`, so that each
// device evaluates the same exactly rounded operations in the same order.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__CUDACC__)
#define HETNET_INLINE __host__ __device__ __forceinline__
#else
// Always inlined: a copy compiled for one instruction set must never be linked into
// code that runs on another.
#define HETNET_INLINE inline __attribute__((always_inline))
#endif

// A file compiled for an instruction set with fused multiply-add defines HETNET_FMA.
#if !defined(HETNET_FMA) && (defined(__CUDACC__) || defined(__FMA__) || defined(__aarch64__))
#define HETNET_FMA 1
#endif

namespace hetnet {

template <class V>
struct lane;

// Constants, since CUDA code cannot call the functions behind them.
template <class S>
constexpr S kInfinity = std::numeric_limits<S>::infinity();
template <class S>
constexpr S kNaN = std::numeric_limits<S>::quiet_NaN();
template <class S>
constexpr S kLowest = std::numeric_limits<S>::lowest();
template <class S>
constexpr S kEpsilon = std::numeric_limits<S>::epsilon();
template <class S>
constexpr S kSmallestNormal = std::numeric_limits<S>::min();

namespace detail {

template <class To, class From>
HETNET_INLINE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast needs equal sizes");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

template <class S>
HETNET_INLINE S square_root(S x) {
  return std::sqrt(x);
}

#if defined(__CUDA_ARCH__)
__device__ __forceinline__ float reciprocal_root(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#define HETNET_RECIPROCAL_ROOT reciprocal_root
#endif

// 1 / sqrt(x) within a few ulp is a GPU's, or what a test has in its place.
#if defined(HETNET_RECIPROCAL_ROOT)
// As exactly rounded, without the branches for numbers that do not come here: one step of Newton's method
// from an approximation of a few ulp (Markstein, "Computation of elementary functions on the IBM RISC
// System/6000 processor", 1990).
template <>
HETNET_INLINE float square_root(float x) {
  const float y = HETNET_RECIPROCAL_ROOT(std::fmax(x, kSmallestNormal<float>));  // finite at 0, whose root is 0
  const float root = x * y, half = 0.5f * y;
  return std::fma(std::fma(-root, root, x), half, root);
}
#endif

template <class S, class I, class U>
struct scalar_lane {
  using Scalar = S;
  using Int = I;
  using UInt = U;
  using Mask = bool;

  static HETNET_INLINE bool any(bool mask) { return mask; }
  static HETNET_INLINE S splat(S x) { return x; }
  static HETNET_INLINE S select(bool mask, S yes, S no) { return mask ? yes : no; }
  static HETNET_INLINE I bits(S x) { return bit_cast<I>(x); }
  static HETNET_INLINE S from_bits(I x) { return bit_cast<S>(x); }
  static HETNET_INLINE S to_real(I x) { return static_cast<S>(x); }
  static HETNET_INLINE S round_to_float(S x) { return static_cast<S>(static_cast<float>(x)); }
  // Of 0 or a normal number.
  static HETNET_INLINE S square_root(S x) { return detail::square_root(x); }
  static HETNET_INLINE S fmadd(S a, S b, S c) {
#if defined(HETNET_FMA)
    return std::fma(a, b, c);
#else
    return a * b + c;
#endif
  }
};

}  // namespace detail

template <>
struct lane<float> : detail::scalar_lane<float, int32_t, uint32_t> {};
template <>
struct lane<double> : detail::scalar_lane<double, int64_t, uint64_t> {};

template <class V>
HETNET_INLINE V splat(typename lane<V>::Scalar x) {
  return lane<V>::splat(x);
}

// x - a b for a product near x, rounded once.
template <class V>
HETNET_INLINE V product_residual(V x, V a, V b) {
#if defined(HETNET_FMA)
  return lane<V>::fmadd(-a, b, x);
#else
  // Dekker's product: both factors in halves whose products are exact.
  using S = typename lane<V>::Scalar;
  const V split = splat<V>(sizeof(S) == sizeof(float) ? S(4097) : S(134217729));  // 2^12 + 1, 2^27 + 1
  const V a_high = a * split - (a * split - a), b_high = b * split - (b * split - b);
  const V a_low = a - a_high, b_low = b - b_high;
  return (((x - a_high * b_high) - a_high * b_low) - a_low * b_high) - a_low * b_low;
#endif
}

// Returned by functions, since CUDA code cannot refer to a constexpr array outside of one.
template <class S, int kCount>
struct Constants {
  S values[kCount];
};

// kScale (c[0] + x (c[1] + x (c[2] + ...))), each step one fused multiply-add. The scale goes
// into the constants: it is a power of two up to its sign, so that no rounding changes.
template <int kScale = 1, int kFirst = 0, class V, class S, int kCount>
HETNET_INLINE V polynomial(V x, const Constants<S, kCount>& c) {
  const V first = splat<V>(S(kScale) * c.values[kFirst]);
  if constexpr (kFirst + 1 == kCount) {
    return first;
  } else {
    return lane<V>::fmadd(x, polynomial<kScale, kFirst + 1>(x, c), first);
  }
}

}  // namespace hetnet
