// Two random words to two independent standard normals: Box and Muller's map.
//
// docs/noise.md states it in full. The uniforms are float32 numbers in either precision,
// so that float64 gives the same noise as float32, only less rounded.
#pragma once

#include "elementary.h"

namespace hetnet {

// `radius_word` and `angle_word` hold one 32-bit word a lane, zero-extended to the lane's width.
template <class V>
HETNET_INLINE void normal_pair(typename lane<V>::UInt radius_word, typename lane<V>::UInt angle_word, V& first,
                               V& second) {
  using L = lane<V>;
  using S = typename L::Scalar;
  using Int = typename L::Int;
  constexpr int kUnused = 8 * sizeof(S) - 32;

  // 31 bits: u in (0, 1], down to 2^-32
  const V integer = L::round_to_float(L::to_real((Int)(radius_word & 0x7fffffffu)));
  const V u = L::round_to_float(L::fmadd(integer, splat<V>(S(0x1p-31)), splat<V>(S(0x1p-32))));
  const V radius = L::square_root(minus_two_log(u));

  // 32 bits: an angle in the right half plane; the top bit, which u leaves over, mirrors it
  const Int angle = (Int)(angle_word << kUnused) >> kUnused;
  const V t = L::round_to_float(L::to_real(angle)) * splat<V>(S(0x1p-32));
  const Int mirror = (Int)((radius_word & 0x80000000u) << kUnused);

  first = L::from_bits(L::bits(radius) ^ mirror) * cospi(t);
  second = radius * sinpi(t);
}

}  // namespace hetnet
