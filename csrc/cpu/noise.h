// The noise source of the CPU kernels: counter-based standard normals (docs/noise.md).
#pragma once

#include "../core/normal.h"
#include "words.h"

namespace hetnet {
namespace HETNET_CPU_NAMESPACE {

// Where the lanes stand in the noise stream. What all lanes share is a uint32_t, the rest Words.
template <class Sample, class RowLow, class RowHigh>
struct StreamPosition {
  Sample sample;
  RowLow row_low;
  RowHigh row_high;
};

// Normals of dimensions 0 .. count-1, a vector each; `out` has room for count rounded up to 4.
template <class T, class Position>
HETNET_INLINE void fill_normals(const PhiloxKeys& keys, const Position& position, int64_t count,
                                Vec<T>* __restrict out) {
  for (int64_t d = 0; d < count; d += 4) {
    const uint32_t block = static_cast<uint32_t>(d / 4);
    const PhiloxBlock<Words<T>> words =
        philox4x32_10(block, position.sample, position.row_low, position.row_high, keys);
    normal_pair<Vec<T>>(words.w0.lanes(), words.w1.lanes(), out[d], out[d + 1]);
    normal_pair<Vec<T>>(words.w2.lanes(), words.w3.lanes(), out[d + 2], out[d + 3]);
  }
}

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
