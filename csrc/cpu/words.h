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

  // Lane i holds the low half of first + i.
  static HETNET_INLINE DoubleWords sequence(uint64_t first) { return {first + (UInt64Vec)lane<DoubleVec>::iota()}; }
  // One 64-bit number a lane.
  static HETNET_INLINE DoubleWords of(const uint64_t* numbers) {
    DoubleWords words;
    std::memcpy(&words, numbers, sizeof(words));
    return words;
  }
  HETNET_INLINE UInt64Vec lanes() const { return w & 0xffffffffu; }
};

HETNET_INLINE DoubleWords operator+(DoubleWords a, uint32_t b) { return {a.w + b}; }

HETNET_INLINE DoubleWords xor_words(DoubleWords a, DoubleWords b, uint64_t key) { return {a.w ^ b.w ^ key}; }
HETNET_INLINE DoubleWords xor_words(DoubleWords a, uint32_t b, uint64_t key) { return {a.w ^ (b ^ key)}; }
HETNET_INLINE DoubleWords xor_words(uint32_t a, DoubleWords b, uint64_t key) { return xor_words(b, a, key); }

// As many words as a FloatVec has lanes: of each four lanes, two in either vector, so that one
// shuffle puts them in order.
struct FloatWords {
  UInt64Vec first_two, last_two;

  static HETNET_INLINE FloatWords sequence(uint64_t first) {
    const UInt64Vec i = (UInt64Vec)lane<DoubleVec>::iota();
    const UInt64Vec two = first + i + (i & ~uint64_t{1});
    return {two, two + 2};
  }
  static HETNET_INLINE FloatWords of(const uint64_t* numbers) {
    FloatWords words{};
    for (int i = 0; i < lane<DoubleVec>::width; ++i) {
      words.first_two[i] = numbers[i + (i & ~1)];
      words.last_two[i] = numbers[i + (i & ~1) + 2];
    }
    return words;
  }
  HETNET_INLINE UInt32Vec lanes() const { return detail::interleave_low_words(first_two, last_two); }
};

HETNET_INLINE FloatWords operator+(FloatWords a, uint32_t b) { return {a.first_two + b, a.last_two + b}; }

HETNET_INLINE FloatWords xor_words(FloatWords a, FloatWords b, uint64_t key) {
  return {a.first_two ^ b.first_two ^ key, a.last_two ^ b.last_two ^ key};
}
HETNET_INLINE FloatWords xor_words(FloatWords a, uint32_t b, uint64_t key) {
  return {a.first_two ^ (b ^ key), a.last_two ^ (b ^ key)};
}
HETNET_INLINE FloatWords xor_words(uint32_t a, FloatWords b, uint64_t key) { return xor_words(b, a, key); }

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
    return {HETNET_CPU_NAMESPACE::detail::multiply_low_words(m + HETNET_CPU_NAMESPACE::UInt64Vec{}, a.w)};
  }
  static HETNET_INLINE W high(W p) { return {p.w >> 32}; }
  static HETNET_INLINE W low(W p) { return p; }
};

template <>
struct word_ops<HETNET_CPU_NAMESPACE::FloatWords> {
  using W = HETNET_CPU_NAMESPACE::FloatWords;
  static HETNET_INLINE W multiply(uint32_t m, W a) {
    using HETNET_CPU_NAMESPACE::detail::multiply_low_words;
    const auto factor = m + HETNET_CPU_NAMESPACE::UInt64Vec{};
    return {multiply_low_words(factor, a.first_two), multiply_low_words(factor, a.last_two)};
  }
  static HETNET_INLINE W high(W p) { return {p.first_two >> 32, p.last_two >> 32}; }
  static HETNET_INLINE W low(W p) { return p; }
};

}  // namespace hetnet
