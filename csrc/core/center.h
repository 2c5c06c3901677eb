// What a sample's noise is added to: the location over the temperature.
#pragma once

#include "lane.h"

namespace hetnet {

// A class whose log-probability is below this in every sample, or on average, is summed relative to
// its own largest term, since the probabilities themselves come near underflow.
constexpr int kSmallestLogProbability = -64;
constexpr double kSmallestProbability = 1.6038108905486378e-28;  // its exponential

// The noise is summed on its own, since the center may be much larger, and the center is kept in two
// parts: so the only rounding in the utility's last place is that of one sum, which differs from
// sample to sample.
template <class V>
struct Center {
  V high, low;

  Center() = default;
  // `zero` is NaN where the parameters of the noise are not finite.
  HETNET_INLINE Center(V loc, V temperature, V zero) : high(loc / temperature) {
    using L = lane<V>;
    const V rest = product_residual(loc, high, temperature) / temperature;
    low = zero + L::select(rest == rest, rest, V{});  // NaN where the location is infinite
  }
  HETNET_INLINE V utility(V noise, V inverse_temperature) const {
    return lane<V>::fmadd(noise, inverse_temperature, low) + high;
  }
};

}  // namespace hetnet
