// Draws normals and does nothing else: what noise.py times.
#define HETNET_CPU_NAMESPACE benchmark
#include "cpu/noise.h"

using namespace hetnet;
using namespace hetnet::benchmark;

// Draws `dimensions` normals, a multiple of 4 and at most 256, of so many vectors of samples, and
// returns one of them. The number of lanes goes to `lanes`.
extern "C" float draw(int64_t dimensions, int64_t vectors, int64_t* lanes) {
  const PhiloxKeys keys(1);
  FloatVec normals[256];
  FloatVec sum{};
  for (int64_t i = 0; i < vectors; ++i) {
    const StreamPosition<FloatWords, uint32_t, uint32_t> position{FloatWords::sequence_low(static_cast<uint64_t>(i)), 1,
                                                                  0};
    fill_normals<float>(keys, position, dimensions, normals);
    sum += normals[i % dimensions];
  }
  *lanes = lane<FloatVec>::width;
  return sum[0];
}
