// The link from utilities to class probabilities: softmax over the classes.
#pragma once

#include "../core/elementary.h"
#include "vec.h"

namespace hetnet {
namespace HETNET_CPU_NAMESPACE {

// Lanes that are not valid get probability 0: inverse_sum 0 and log_sum infinity.
template <class V>
struct Softmax {
  V max;          // largest utility
  V inverse_sum;  // 1 / sum_k exp(u_k - max)
  V log_sum;      // log sum_k exp(u_k - max)
  V entropy;      // only if asked for

  HETNET_INLINE V log_probability(V utility) const { return utility - max - log_sum; }
};

// Writes exp(u_k - max) to `exponential`. A NaN or +inf among the utilities makes all of
// the lane's results NaN; a utility of -inf has probability 0.
template <bool kEntropy = false, class V>
HETNET_INLINE Softmax<V> softmax(const V* __restrict utility, int64_t classes, typename lane<V>::Mask valid,
                                 V* __restrict exponential) {
  using L = lane<V>;
  using S = typename L::Scalar;
  V max = utility[0];
  for (int64_t k = 1; k < classes; ++k) max = L::maximum(max, utility[k]);

  const auto term = [&](int64_t k, V& weighted) {
    const V difference = utility[k] - max;
    const V value = exp(difference);
    if constexpr (kEntropy) {
      // -inf times the probability 0 counts as 0
      const V finite = L::maximum(splat<V>(std::numeric_limits<S>::lowest()), difference);
      weighted = L::fmadd(value, finite, weighted);
    }
    exponential[k] = value;
    return value;
  };
  V sum{}, weighted{};
  int64_t k = 0;
  // Four at a time, so that small terms meet before they are added to a large sum.
  for (; k + 4 <= classes; k += 4) {
    V part[4];
    for (int j = 0; j < 4; ++j) part[j] = term(k + j, weighted);
    sum += (part[0] + part[1]) + (part[2] + part[3]);
  }
  for (; k < classes; ++k) sum += term(k, weighted);

  const V inverse_sum = splat<V>(S(1)) / sum;
  const V log_sum = L::fmadd(inverse_sum, V{}, log(sum));  // a sum of NaN stays NaN
  Softmax<V> result{max, L::select(valid, inverse_sum, V{}),
                    L::select(valid, log_sum, splat<V>(std::numeric_limits<S>::infinity())), V{}};
  if constexpr (kEntropy) result.entropy = L::select(valid, log_sum - weighted * inverse_sum, V{});
  return result;
}

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
