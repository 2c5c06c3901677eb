// exp, log, sin(pi t) and cos(pi t) on the ranges that the head needs.
//
// Each is a fixed sequence of exactly rounded operations: with fused multiply-add the
// result is the same, bit for bit, for every lane type. Errors in ulp are asserted in
// tests/test_elementary.py.
#pragma once

#include "coefficients.h"
#include "lane.h"

namespace hetnet {

template <class Scalar>
struct FloatFormat;

template <>
struct FloatFormat<float> {
  static constexpr int mantissa_bits = 23;
  static constexpr int32_t exponent_bias = 127;
  static constexpr float round_magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  static constexpr int32_t exponent_mask = ~0x007fffff;
  static constexpr int32_t sqrt_half_bits = 0x3f3504f3;  // sqrt(1/2)
  static constexpr float min_exp = -87.33654f;           // log of the smallest normal number
  static constexpr float log2_e = 1.44269504f;
  static constexpr float ln2_high = 0.693359375f;  // 10 bits: n * ln2_high is exact
  static constexpr float ln2_low = -2.12194440e-4f;
  static constexpr float ulp_of_one = 0x1p-23f;
};

template <>
struct FloatFormat<double> {
  static constexpr int mantissa_bits = 52;
  static constexpr int64_t exponent_bias = 1023;
  static constexpr double round_magic = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr int64_t exponent_mask = ~0x000fffffffffffff;
  static constexpr int64_t sqrt_half_bits = 0x3fe6a09e667f3bcd;
  static constexpr double min_exp = -708.3964185322641;
  static constexpr double log2_e = 1.4426950408889634;
  static constexpr double ln2_high = 6.93147180369123816490e-01;  // 33 bits
  static constexpr double ln2_low = 1.90821492927058770002e-10;
  static constexpr double ulp_of_one = 0x1p-52;
};

// e^x for x <= 88 (float) or 709 (double). Where e^x is subnormal the result is 0; NaN stays NaN.
template <class V>
HETNET_INLINE V exp(V x) {
  using L = lane<V>;
  using S = typename L::Scalar;
  using F = FloatFormat<S>;
  const V shifted = L::fmadd(x, splat<V>(F::log2_e), splat<V>(F::round_magic));
  const V n = shifted - splat<V>(F::round_magic);
  V r = L::fmadd(n, splat<V>(-F::ln2_high), x);
  r = L::fmadd(n, splat<V>(-F::ln2_low), r);
  const V one = splat<V>(S(1));
  const V mantissa = L::fmadd(r, L::fmadd(r, polynomial(r, Coefficients<S>::exp()), one), one);
  // the low bits of `shifted` are n; the shift drops the rest
  const auto power_of_two =
      (typename L::Int)((typename L::UInt)(L::bits(shifted) + F::exponent_bias) << F::mantissa_bits);
  return L::select(x < splat<V>(F::min_exp), splat<V>(S(0)), mantissa * L::from_bits(power_of_two));
}

// kScale log x for normal x > 0; see `polynomial` for the scale. Anything but a normal x > 0 has
// no defined result: see `log_or_limit`.
template <int kScale, class V>
HETNET_INLINE V scaled_log(V x) {
  using L = lane<V>;
  using S = typename L::Scalar;
  using F = FloatFormat<S>;
  constexpr S c = S(kScale);
  // x = 2^e m with m in [sqrt(1/2), sqrt(2)), and e still in the exponent's place
  const auto exponent = (L::bits(x) - F::sqrt_half_bits) & F::exponent_mask;
  const V f = L::from_bits(L::bits(x) - exponent) - splat<V>(S(1));
  const V e = L::to_real(exponent);
  const V f2 = f * f;
  V tail;
  if constexpr (sizeof(S) == sizeof(float)) {
    tail = f2 * f * polynomial<kScale>(f, Coefficients<S>::log());
    tail = L::fmadd(e, splat<V>(c * F::ln2_low * F::ulp_of_one), tail);
    tail = L::fmadd(splat<V>(c * S(-0.5)), f2, tail);
  } else {
    // log(1 + f) = 2 s + s^3 p(s^2) with s = f / (2 + f)
    const V s = f / (f + splat<V>(S(2)));
    const V s2 = s * s;
    const V half = splat<V>(c * S(0.5)) * f2;
    // 2 s = f - f^2/2 + s f^2/2, which keeps the leading term exact
    tail = s * L::fmadd(s2, polynomial<kScale>(s2, Coefficients<S>::log()), half);
    tail = L::fmadd(e, splat<V>(c * F::ln2_low * F::ulp_of_one), tail) - half;
  }
  return L::fmadd(e, splat<V>(c * F::ln2_high * F::ulp_of_one), L::fmadd(splat<V>(c), f, tail));
}

template <class V>
HETNET_INLINE V log(V x) {
  return scaled_log<1>(x);
}

template <class V>
HETNET_INLINE V minus_two_log(V x) {
  return scaled_log<-2>(x);
}

// log x with its limits: -inf at 0 (and below the normal numbers), NaN for NaN.
template <class V>
HETNET_INLINE V log_or_limit(V x) {
  using L = lane<V>;
  using S = typename L::Scalar;
  const V smallest = splat<V>(kSmallestNormal<S>);
  const V finite = L::select(x < smallest, splat<V>(-kInfinity<S>), log(x));
  return L::select(x == x, finite, x);
}

// sin(pi t) for |t| <= 1/2.
template <class V>
HETNET_INLINE V sinpi(V t) {
  return t * polynomial(t * t, Coefficients<typename lane<V>::Scalar>::sinpi());
}

// cos(pi t) for |t| <= 1/2: its zero at 1/2 is a factor of its own, so that the relative
// error stays small up to there.
template <class V>
HETNET_INLINE V cospi(V t) {
  using S = typename lane<V>::Scalar;
  const V twice = t + t;
#if defined(HETNET_FMA)
  const V zero_factor = lane<V>::fmadd(-twice, twice, splat<V>(S(1)));
#else
  const V zero_factor = (splat<V>(S(1)) - twice) * (splat<V>(S(1)) + twice);
#endif
  return zero_factor * polynomial(t * t, Coefficients<S>::cospi());
}

}  // namespace hetnet
