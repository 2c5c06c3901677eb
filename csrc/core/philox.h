// Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
//
// A pure function of a 128-bit counter and a 64-bit key. A word is a uint32_t, or one word a
// lane (cpu/words.h). A counter may mix the two: what is the same on all lanes stays scalar for
// the first rounds, until the words that differ have spread into it.
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

constexpr uint32_t kPhiloxMultipliers[2] = {0xD2511F53u, 0xCD9E8D57u};

// What the two words of the key grow by from round to round.
template <int kWord>
constexpr uint32_t kPhiloxKeyStep = kWord == 0 ? 0x9E3779B9u : 0xBB67AE85u;

// The key of each round: both of its words, as wide as a lane of words.
struct PhiloxKeys {
  uint64_t words[10][2];

  template <int kRound, int kWord>
  HETNET_INLINE uint64_t word() const {
    return words[kRound][kWord];
  }

  explicit HETNET_INLINE PhiloxKeys(uint64_t seed) {
    for (uint32_t round = 0; round < 10; ++round) {
      words[round][0] = static_cast<uint32_t>(static_cast<uint32_t>(seed) + round * kPhiloxKeyStep<0>);
      words[round][1] = static_cast<uint32_t>(static_cast<uint32_t>(seed >> 32) + round * kPhiloxKeyStep<1>);
    }
  }
};

// The same, made where it is needed, for code that is short of registers.
struct PhiloxKey {
  uint32_t low, high;

  explicit HETNET_INLINE PhiloxKey(uint64_t seed)
      : low(static_cast<uint32_t>(seed)), high(static_cast<uint32_t>(seed >> 32)) {}

  template <int kRound, int kWord>
  HETNET_INLINE uint64_t word() const {
    return (kWord == 0 ? low : high) + kRound * kPhiloxKeyStep<kWord>;
  }
};

template <class W>
struct PhiloxBlock {
  W w0, w1, w2, w3;
};

HETNET_INLINE uint32_t xor_words(uint32_t a, uint32_t b, uint64_t key) { return a ^ b ^ static_cast<uint32_t>(key); }

// The random words of counter (c0, c1, c2, c3), or of what the first kRound rounds have made of it.
template <int kRound = 0, class C0, class C1, class C2, class C3, class Keys>
HETNET_INLINE auto philox4x32_10(C0 c0, C1 c1, C2 c2, C3 c3, const Keys& keys) {
  if constexpr (kRound == 10) {
    return PhiloxBlock<C0>{c0, c1, c2, c3};
  } else {
    const auto p0 = word_ops<C0>::multiply(kPhiloxMultipliers[0], c0);
    const auto p1 = word_ops<C2>::multiply(kPhiloxMultipliers[1], c2);
    const auto n0 = xor_words(word_ops<C2>::high(p1), c1, keys.template word<kRound, 0>());
    const auto n2 = xor_words(word_ops<C0>::high(p0), c3, keys.template word<kRound, 1>());
    return philox4x32_10<kRound + 1>(n0, word_ops<C2>::low(p1), n2, word_ops<C0>::low(p0), keys);
  }
}

}  // namespace hetnet
