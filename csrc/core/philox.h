// Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
//
// A pure function of a 128-bit counter and a 64-bit key. `W` holds one 32-bit word a
// lane: uint32_t, or the vector words of cpu/words.h.
#pragma once

#include "lane.h"

namespace hetnet {

template <class W>
struct word_ops;

template <>
struct word_ops<uint32_t> {
  using Product = uint64_t;
  static HETNET_INLINE Product multiply(uint32_t m, uint32_t w) { return static_cast<uint64_t>(m) * w; }
  static HETNET_INLINE uint32_t high(Product p) { return static_cast<uint32_t>(p >> 32); }
  static HETNET_INLINE uint32_t low(Product p) { return static_cast<uint32_t>(p); }
};

struct PhiloxKey {
  uint32_t k0, k1;
};

HETNET_INLINE PhiloxKey philox_key(uint64_t seed) {
  return {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
}

// Replaces the counter (c[0], c[1], c[2], c[3]) by its four random words.
template <class W>
HETNET_INLINE void philox4x32_10(W (&c)[4], PhiloxKey key) {
  using ops = word_ops<W>;
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const auto p0 = ops::multiply(0xD2511F53u, c[0]);
    const auto p1 = ops::multiply(0xCD9E8D57u, c[2]);
    c[0] = ops::high(p1) ^ c[1] ^ key.k0;
    c[1] = ops::low(p1);
    c[2] = ops::high(p0) ^ c[3] ^ key.k1;
    c[3] = ops::low(p0);
    key.k0 += 0x9E3779B9u;
    key.k1 += 0xBB67AE85u;
  }
}

}  // namespace hetnet
