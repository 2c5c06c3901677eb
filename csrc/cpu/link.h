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
  // Four at a time: independent steps hide their latency, and small terms of a sum meet before
  // they are added to a large one.
  V max = utility[0];
  int64_t k = 1;
  for (; k + 4 <= classes; k += 4) {
    const V first = L::maximum(utility[k], utility[k + 1]), second = L::maximum(utility[k + 2], utility[k + 3]);
    max = L::maximum(max, L::maximum(first, second));
  }
  for (; k < classes; ++k) max = L::maximum(max, utility[k]);

  V sum{}, weighted{};
  const auto add_terms = [&](int64_t first, auto count) {
    constexpr int kCount = decltype(count)::value;
    V value[kCount], product[kCount];
    for (int j = 0; j < kCount; ++j) {
      const V difference = utility[first + j] - max;
      value[j] = exponential[first + j] = exp(difference);
      // -inf times the probability 0 counts as 0
      if constexpr (kEntropy)
        product[j] = value[j] * L::maximum(splat<V>(std::numeric_limits<S>::lowest()), difference);
    }
    if constexpr (kCount == 4) {
      sum += (value[0] + value[1]) + (value[2] + value[3]);
      if constexpr (kEntropy) weighted += (product[0] + product[1]) + (product[2] + product[3]);
    } else {
      sum += value[0];
      if constexpr (kEntropy) weighted += product[0];
    }
  };
  for (k = 0; k + 4 <= classes; k += 4) add_terms(k, std::integral_constant<int, 4>());
  for (; k < classes; ++k) add_terms(k, std::integral_constant<int, 1>());

  const V inverse_sum = splat<V>(S(1)) / sum;
  const V log_sum = L::fmadd(inverse_sum, V{}, log(sum));  // a sum of NaN stays NaN
  Softmax<V> result{max, L::select(valid, inverse_sum, V{}),
                    L::select(valid, log_sum, splat<V>(std::numeric_limits<S>::infinity())), V{}};
  if constexpr (kEntropy) result.entropy = L::select(valid, log_sum - weighted * inverse_sum, V{});
  return result;
}

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
