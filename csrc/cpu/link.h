// The link from utilities to class probabilities: softmax over the classes.
#pragma once

#include "../core/elementary.h"
#include "vec.h"

namespace hetnet {
namespace HETNET_CPU_NAMESPACE {

// What the probabilities of a draw are made of, a number a sample for each slice.
template <class V, int64_t kSlices>
struct Softmax {
  V max[kSlices];          // largest utility
  V inverse_sum[kSlices];  // 1 / sum_k exp(u_k - max)
  V log_sum[kSlices];      // log sum_k exp(u_k - max)
  V entropy[kSlices];      // only if asked for
  V sum[kSlices];          // sum_k exp(u_k - max)

  HETNET_INLINE V log_probability(int64_t slice, V utility) const { return utility - max[slice] - log_sum[slice]; }
};

// The functions write exp(u_k - max) to `exponential`. A NaN or +inf among a sample's utilities
// makes all of its results NaN; a utility of -inf has probability 0.

// A class in each vector, and samples or rows along the lanes. Lanes that are not valid get
// probability 0: inverse_sum 0 and log_sum infinity.
template <bool kEntropy, class V>
HETNET_INLINE void softmax_over_vectors(const V* __restrict utility, int64_t classes, typename lane<V>::Mask valid,
                                        V* __restrict exponential, Softmax<V, 1>& result) {
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
  result.max[0] = max;
  result.sum[0] = sum;
  result.inverse_sum[0] = L::select(valid, inverse_sum, V{});
  result.log_sum[0] = L::select(valid, log_sum, splat<V>(std::numeric_limits<S>::infinity()));
  if constexpr (kEntropy) result.entropy[0] = L::select(valid, log_sum - weighted * inverse_sum, V{});
}

// The sum of term(0), ..., term(count - 1). Four at a time: independent steps hide their latency, and
// small terms of a sum meet before they are added to a large one.
template <class V, class Term>
HETNET_INLINE V sum_in_fours(int64_t count, const Term& term) {
  V sum{};
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const V first = term(i), second = term(i + 1), third = term(i + 2), fourth = term(i + 3);
    sum += (first + second) + (third + fourth);
  }
  for (; i < count; ++i) sum += term(i);
  return sum;
}

// Calls f(first, count) for the slices in runs of a vector's width, for what sums over lanes.
template <class V, class F>
HETNET_INLINE void for_lanes_of_slices(int64_t slices, const F& f) {
  for (int64_t first = 0; first < slices; first += lane<V>::width)
    f(first, slices - first < lane<V>::width ? slices - first : int64_t{lane<V>::width});
}

// Classes along the lanes of `vectors` vectors, a sample in each slice.
template <bool kEntropy, class V, int64_t kSlices>
HETNET_INLINE void softmax_over_lanes(const V* __restrict utility, int64_t slices, int64_t vectors,
                                      V* __restrict exponential, Softmax<V, kSlices>& result) {
  using L = lane<V>;
  using S = typename L::Scalar;
  static_assert(kSlices % L::width == 0, "sums over the lanes of a whole vector's number of slices");
  // Each step runs over all slices, which hide each other's latency.
  V partial[kSlices] = {}, weighted[kSlices] = {};
  for (int64_t s = 0; s < slices; ++s) {
    const V* u = utility + s * vectors;
    V maxima[2] = {u[0], u[0]};
    int64_t c = 1;
    for (; c + 2 <= vectors; c += 2)
      for (int j = 0; j < 2; ++j) maxima[j] = L::maximum(maxima[j], u[c + j]);
    if (c < vectors) maxima[0] = L::maximum(maxima[0], u[c]);
    partial[s] = L::maximum(maxima[0], maxima[1]);
  }
  for_lanes_of_slices<V>(slices, [&](int64_t first, int64_t count) {
    // Where all classes of a tile are masked, any finite number leaves them probability 0.
    const V most = L::maxima(partial + first);
    const V max = L::select(most == splat<V>(-std::numeric_limits<S>::infinity()), V{}, most);
    for (int64_t i = 0; i < count; ++i) result.max[first + i] = splat<V>(max[i]);
  });

  for (int64_t s = 0; s < slices; ++s) {
    const V* u = utility + s * vectors;
    V* e = exponential + s * vectors;
    const V max = result.max[s];
    partial[s] = sum_in_fours<V>(vectors, [&](int64_t c) { return e[c] = exp(u[c] - max); });
    if constexpr (kEntropy)
      // -inf times the probability 0 counts as 0
      weighted[s] = sum_in_fours<V>(vectors, [&](int64_t c) {
        return e[c] * L::maximum(splat<V>(std::numeric_limits<S>::lowest()), u[c] - max);
      });
  }
  for_lanes_of_slices<V>(slices, [&](int64_t first, int64_t count) {
    const V sum = L::sums(partial + first);
    const V inverse_sum = splat<V>(S(1)) / sum;
    const V log_sum = L::fmadd(inverse_sum, V{}, log(sum));
    V entropy{};
    if constexpr (kEntropy) entropy = log_sum - L::sums(weighted + first) * inverse_sum;
    for (int64_t i = 0; i < count; ++i) {
      result.sum[first + i] = splat<V>(sum[i]);
      result.inverse_sum[first + i] = splat<V>(inverse_sum[i]);
      result.log_sum[first + i] = splat<V>(log_sum[i]);
      if constexpr (kEntropy) result.entropy[first + i] = splat<V>(entropy[i]);
    }
  });
}

// The same for a tile of classes, where max, inverse_sum and log_sum of all classes are known. The
// entropies are the tile's parts of them.
template <bool kEntropy, class V, int64_t kSlices>
HETNET_INLINE void softmax_of_tile(const V* __restrict utility, int64_t slices, int64_t vectors,
                                   V* __restrict exponential, Softmax<V, kSlices>& result) {
  using L = lane<V>;
  using S = typename L::Scalar;
  for (int64_t s = 0; s < slices; ++s) {
    const V* u = utility + s * vectors;
    V* e = exponential + s * vectors;
    const V max = result.max[s];
    for (int64_t c = 0; c < vectors; ++c) e[c] = exp(u[c] - max);
    if constexpr (kEntropy) {
      const V parts = sum_in_fours<V>(vectors, [&](int64_t c) {
        const V difference = L::maximum(splat<V>(std::numeric_limits<S>::lowest()), u[c] - max);
        return e[c] * (result.log_sum[s] - difference);
      });
      result.entropy[s] = splat<V>(L::sum(parts)) * result.inverse_sum[s];
    }
  }
}

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
