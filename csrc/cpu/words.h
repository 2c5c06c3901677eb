// Vectors of 32-bit random words, one a lane, as Philox works on them: in 64-bit lanes,
// because the hardware multiplies 32 x 32 -> 64 bits there. Only the low half of a 64-bit
// lane counts; what the rounds leave in the high half is never read.
#pragma once

#include "../core/philox.h"
#include "vec.h"

namespace hetnet {
namespace HETNET_CPU_NAMESPACE {

// As many words as a DoubleVec has lanes.
struct DoubleWords {
  UInt64Vec w;

  static HETNET_INLINE DoubleWords splat(uint32_t x) { return {x + UInt64Vec{}}; }
  // lane i: first + step i, low and high 32 bits
  static HETNET_INLINE DoubleWords sequence_low(uint64_t first) { return {first + (UInt64Vec)lane<DoubleVec>::iota()}; }
  static HETNET_INLINE DoubleWords sequence_high(uint64_t first) { return {sequence_low(first).w >> 32}; }
  HETNET_INLINE UInt64Vec lanes() const { return w & 0xffffffffu; }
};

HETNET_INLINE DoubleWords operator^(DoubleWords a, DoubleWords b) { return {a.w ^ b.w}; }
HETNET_INLINE DoubleWords operator^(DoubleWords a, uint32_t b) { return {a.w ^ b}; }

// As many words as a FloatVec has lanes: the even lanes and the odd lanes.
struct FloatWords {
  UInt64Vec even, odd;

  static HETNET_INLINE FloatWords splat(uint32_t x) { return {x + UInt64Vec{}, x + UInt64Vec{}}; }
  static HETNET_INLINE FloatWords sequence_low(uint64_t first) {
    const UInt64Vec even = first + 2 * (UInt64Vec)lane<DoubleVec>::iota();
    return {even, even + 1};
  }
  static HETNET_INLINE FloatWords sequence_high(uint64_t first) {
    const FloatWords low = sequence_low(first);
    return {low.even >> 32, low.odd >> 32};
  }
  HETNET_INLINE UInt32Vec lanes() const { return (UInt32Vec)((even & 0xffffffffu) | (odd << 32)); }
};

HETNET_INLINE FloatWords operator^(FloatWords a, FloatWords b) { return {a.even ^ b.even, a.odd ^ b.odd}; }
HETNET_INLINE FloatWords operator^(FloatWords a, uint32_t b) { return {a.even ^ b, a.odd ^ b}; }

template <class T>
struct words_of;
template <>
struct words_of<float> {
  using type = FloatWords;
};
template <>
struct words_of<double> {
  using type = DoubleWords;
};
template <class T>
using Words = typename words_of<T>::type;

}  // namespace HETNET_CPU_NAMESPACE

template <>
struct word_ops<HETNET_CPU_NAMESPACE::DoubleWords> {
  using W = HETNET_CPU_NAMESPACE::DoubleWords;
  static HETNET_INLINE W multiply(uint32_t m, W a) {
    return {HETNET_CPU_NAMESPACE::detail::multiply_low_words(W::splat(m).w, a.w)};
  }
  static HETNET_INLINE W high(W p) { return {p.w >> 32}; }
  static HETNET_INLINE W low(W p) { return p; }
};

template <>
struct word_ops<HETNET_CPU_NAMESPACE::FloatWords> {
  using W = HETNET_CPU_NAMESPACE::FloatWords;
  static HETNET_INLINE W multiply(uint32_t m, W a) {
    using HETNET_CPU_NAMESPACE::detail::multiply_low_words;
    const auto factor = W::splat(m).even;
    return {multiply_low_words(factor, a.even), multiply_low_words(factor, a.odd)};
  }
  static HETNET_INLINE W high(W p) { return {p.even >> 32, p.odd >> 32}; }
  static HETNET_INLINE W low(W p) { return p; }
};

}  // namespace hetnet
