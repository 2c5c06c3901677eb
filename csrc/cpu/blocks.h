// Loops whose bodies work on a few elements at once, in registers.
#pragma once

#include "vec.h"

// Before a loop over a block: unrolled early, so that the arrays which it indexes stay in registers.
#define HETNET_UNROLL _Pragma("GCC unroll 16")

namespace hetnet {
namespace HETNET_CPU_NAMESPACE {

// Sums that are made together: enough to hide the latency of a multiply-add, and few enough to
// stay in registers.
constexpr int kBlock = HETNET_VECTOR_REGISTERS / 2;

namespace detail {

template <int kCount, class F>
HETNET_INLINE void for_rest(int64_t first, int64_t count, const F& f) {
  if constexpr (kCount > 0) {
    if (count == kCount)
      f(first, std::integral_constant<int, kCount>());
    else
      for_rest<kCount - 1>(first, count, f);
  }
}

}  // namespace detail

// Calls f(first, integral_constant<count>) on blocks of at most kMost that cover [0, size). The last
// two share what is left, so that neither is so small that its sums wait for one another.
template <int kMost = kBlock, class F>
HETNET_INLINE void for_blocks(int64_t size, const F& f) {
  int64_t first = 0;
  for (; size - first >= 2 * kMost; first += kMost) f(first, std::integral_constant<int, kMost>());
  if (size - first > kMost) {
    const int64_t half = (size - first + 1) / 2;
    detail::for_rest<kMost>(first, half, f);
    first += half;
  }
  detail::for_rest<kMost>(first, size - first, f);
}

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
