// What the instructions of PTX do, for the C++ that ptx.py makes of them. A register is a word of 64 bits.
#pragma once

#include <string>
#include <type_traits>

#include "cuemu.h"

namespace ptx {

template <class T>
T as(uint64_t word) {
  if constexpr (std::is_same_v<T, bool>)
    return word != 0;
  else
    return cuemu::from_bits<T>(word);
}

template <class T>
uint64_t word(T value) {
  return cuemu::to_bits(value);
}

// A parameter that is passed as its bytes.
template <int kBytes>
struct Structure {
  alignas(8) unsigned char bytes[kBytes];
};

// Memory

inline uint64_t shared_address(uint64_t offset) {
  return reinterpret_cast<uint64_t>(cuemu::dyn_smem()) + static_cast<uint32_t>(offset);
}

template <class T>
T load(uint64_t address) {
  return *reinterpret_cast<const T*>(address);
}

template <class T>
void store(uint64_t address, T value) {
  *reinterpret_cast<T*>(address) = value;
}

// Arithmetic, where integers wrap around

template <class T, class Operation>
T wrapping(T x, T y, Operation operation) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(operation(static_cast<std::make_unsigned_t<T>>(x), static_cast<std::make_unsigned_t<T>>(y)));
  else
    return operation(x, y);
}

template <class T>
T add(T x, T y) {
  return wrapping(x, y, [](auto a, auto b) { return a + b; });
}
template <class T>
T sub(T x, T y) {
  return wrapping(x, y, [](auto a, auto b) { return a - b; });
}
template <class T>
T mul(T x, T y) {
  return wrapping(x, y, [](auto a, auto b) { return a * b; });
}
template <class T>
T neg(T x) {
  if constexpr (std::is_integral_v<T>)
    return sub(T(0), x);
  else
    return -x;
}
template <class T>
T div(T x, T y) {
  return x / y;
}
template <class T>
T rem(T x, T y) {
  return x % y;
}
template <class T>
T fma(T x, T y, T z) {
  return std::fma(x, y, z);
}
// A NaN yields to a number.
template <class T>
T max(T x, T y) {
  if constexpr (std::is_integral_v<T>)
    return x < y ? y : x;
  else
    return std::fmax(x, y);
}
template <class T>
T min(T x, T y) {
  if constexpr (std::is_integral_v<T>)
    return y < x ? y : x;
  else
    return std::fmin(x, y);
}
template <class T>
T max_nan(T x, T y) {
  return x != x ? x : y != y ? y : max(x, y);
}
template <class T>
T sqrt(T x) {
  return std::sqrt(x);
}
template <class T>
T rcp(T x) {
  return 1 / x;
}
inline float rcp_approx(float x) { return cuemu::rcp_approx(x); }
inline float ex2_approx(float x) { return cuemu::ex2_approx(x); }
inline float rsqrt_approx(float x) { return ::rsqrtf(x); }

// Bits

template <class T>
T bit_and(T x, T y) {
  return static_cast<T>(x & y);
}
template <class T>
T bit_or(T x, T y) {
  return static_cast<T>(x | y);
}
template <class T>
T bit_xor(T x, T y) {
  return static_cast<T>(x ^ y);
}
template <class T>
T bit_not(T x) {
  if constexpr (std::is_same_v<T, bool>)
    return !x;
  else
    return static_cast<T>(~x);
}
template <class T>
T shl(T x, uint32_t by) {
  return by < 8 * sizeof(T) ? static_cast<T>(static_cast<std::make_unsigned_t<T>>(x) << by) : T(0);
}
template <class T>
T shr(T x, uint32_t by) {
  constexpr uint32_t kMost = 8 * sizeof(T) - 1;
  if (by <= kMost) return static_cast<T>(x >> by);
  return std::is_signed_v<T> ? static_cast<T>(x >> kMost) : T(0);
}

// Between the lanes of a warp

// 31 stands for all of them; nothing else is asked for.
inline int shuffle_width(uint32_t clamp) {
  if (clamp != 31) std::abort();
  return cuemu::kWarpSize;
}

inline uint32_t reduce_or(uint32_t mask, uint32_t bits, cuemu::Place place) {
  uint32_t result = 0;
  for (int bit = 0; bit < 32; ++bit)
    result |= static_cast<uint32_t>(cuemu::ballot(mask, bits >> bit & 1, place) != 0) << bit;
  return result;
}

}  // namespace ptx
