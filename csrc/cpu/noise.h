// The noise source of the CPU kernels: counter-based standard normals (docs/noise.md).
#pragma once

#include "../core/normal.h"
#include "words.h"

namespace hetnet {
namespace HETNET_CPU_NAMESPACE {

// Where the lanes stand in the noise stream: each lane has its row and its sample.
template <class T>
struct StreamPosition {
  Words<T> sample, row_low, row_high;
};

template <class T>
struct PhiloxNormals {
  PhiloxKey key;

  // Normals of dimensions 0 .. count-1, a vector each; `out` has room for count rounded up to 4.
  void fill(const StreamPosition<T>& position, int64_t count, Vec<T>* __restrict out) const {
    for (int64_t d = 0; d < count; d += 4) {
      Words<T> c[4] = {Words<T>::splat(static_cast<uint32_t>(d / 4)), position.sample, position.row_low,
                       position.row_high};
      philox4x32_10(c, key);
      normal_pair<Vec<T>>(c[0].lanes(), c[1].lanes(), out[d], out[d + 1]);
      normal_pair<Vec<T>>(c[2].lanes(), c[3].lanes(), out[d + 2], out[d + 3]);
    }
  }
};

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
