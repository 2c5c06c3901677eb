// The backward of the covariance: from the gradient of the utilities to that of the head's
// parameters, summed over the samples.
#pragma once

#include "covariance.h"

namespace hetnet {
namespace HETNET_CPU_NAMESPACE {

// Draws that wait until the product of their gradients with their noise is worth a pass over
// the factor's gradient.
constexpr int64_t kPendingDraws = 8;

// The sum over samples of delta_k eta_r, a matrix of classes x factors for each row.
template <class T, class Lanes>
class OuterProduct;

// Lanes are samples, which the sum runs over: the gradients are transposed to have classes along
// the lanes, so that the sums need none across them.
template <class T>
class OuterProduct<T, SampleLanes<T>> {
  using V = Vec<T>;
  static constexpr int kWidth = lane<V>::width;

 public:
  OuterProduct(int64_t classes, int64_t factors)
      : classes_(classes),
        factors_(factors),
        blocks_(factors > 0 ? (classes + kWidth - 1) / kWidth : 0),
        delta_(blocks_ * kPendingDraws * kWidth),
        eta_(kPendingDraws * factors),
        sum_(blocks_ * factors) {}

  void clear() {
    pending_ = 0;
    for (int64_t i = 0; i < blocks_ * factors_; ++i) sum_[i] = V{};
  }

  void add(const V* delta, const V* eta) {
    if (factors_ == 0) return;
    for (int64_t b = 0; b < blocks_; ++b) {
      V block[kWidth];
      for (int i = 0; i < kWidth; ++i) block[i] = b * kWidth + i < classes_ ? delta[b * kWidth + i] : V{};
      lane<V>::transpose(block);
      V* out = &delta_[(b * kPendingDraws + pending_) * kWidth];
      for (int i = 0; i < kWidth; ++i) out[i] = block[i];
    }
    for (int64_t r = 0; r < factors_; ++r) eta_[pending_ * factors_ + r] = eta[r];
    if (++pending_ == kPendingDraws) flush();
  }

  // The totals: block of classes, factor, class.
  static int64_t totals(int64_t classes, int64_t factors) { return (classes + kWidth - 1) / kWidth * kWidth * factors; }
  void finish(double* totals) {
    flush();
    for (int64_t i = 0; i < blocks_ * factors_; ++i)
      for (int l = 0; l < kWidth; ++l) totals[i * kWidth + l] = sum_[i][l];
  }
  // Stores totals times `factor` as a matrix of classes x factors, or adds them to one that all
  // rows share.
  static void store(const SampleLanes<T>& lanes, int64_t classes, int64_t factors, const double* totals, double factor,
                    T* out) {
    out += lanes.row * classes * factors;
    for_elements(classes, factors,
                 [&](int64_t element, int64_t i) { out[element] = static_cast<T>(totals[i] * factor); });
  }
  static void add(const SampleLanes<T>&, int64_t classes, int64_t factors, const double* totals, double factor,
                  double* shared) {
    for_elements(classes, factors, [&](int64_t element, int64_t i) { shared[element] += totals[i] * factor; });
  }

 private:
  // Calls f(place in the matrix, place in the totals) for every element.
  template <class F>
  static void for_elements(int64_t classes, int64_t factors, const F& f) {
    for (int64_t first = 0; first < classes; first += kWidth) {
      const int64_t count = classes - first < kWidth ? classes - first : kWidth;
      for (int64_t r = 0; r < factors; ++r)
        for (int64_t l = 0; l < count; ++l) f((first + l) * factors + r, first * factors + r * kWidth + l);
    }
  }

  void flush() {
    for (int64_t b = 0; b < blocks_; ++b)
      for_blocks(factors_, [&](int64_t first, auto count) {
        constexpr int kCount = decltype(count)::value;
        V sum[kCount] = {};
        for (int64_t d = 0; d < pending_; ++d) {
          const V* delta = &delta_[(b * kPendingDraws + d) * kWidth];
          const T* eta = reinterpret_cast<const T*>(&eta_[d * factors_ + first]);
          for (int s = 0; s < kWidth; ++s)
            for (int j = 0; j < kCount; ++j) sum[j] = lane<V>::fmadd(delta[s], splat<V>(eta[j * kWidth + s]), sum[j]);
        }
        for (int j = 0; j < kCount; ++j) sum_[b * factors_ + first + j] += sum[j];
      });
    pending_ = 0;
  }

  int64_t classes_, factors_, blocks_, pending_ = 0;
  Buffer<V> delta_;  // block of classes, pending draw, sample: classes along the lanes
  Buffer<V> eta_;    // pending draw, factor: samples along the lanes
  Buffer<V> sum_;    // block of classes, factor
};

// Lanes are rows: each has a sum of its own.
template <class T>
class OuterProduct<T, RowLanes<T>> {
  using V = Vec<T>;

 public:
  OuterProduct(int64_t classes, int64_t factors)
      : classes_(classes),
        factors_(factors),
        delta_(kPendingDraws * classes),
        eta_(kPendingDraws * factors),
        sum_(classes * factors) {}

  void clear() {
    pending_ = 0;
    for (int64_t i = 0; i < classes_ * factors_; ++i) sum_[i] = V{};
  }

  void add(const V* delta, const V* eta) {
    if (factors_ == 0) return;
    for (int64_t k = 0; k < classes_; ++k) delta_[k * kPendingDraws + pending_] = delta[k];
    for (int64_t r = 0; r < factors_; ++r) eta_[pending_ * factors_ + r] = eta[r];
    if (++pending_ == kPendingDraws) flush();
  }

  static int64_t totals(int64_t classes, int64_t factors) { return classes * factors; }
  void finish(V* totals) {
    flush();
    for (int64_t i = 0; i < classes_ * factors_; ++i) totals[i] = sum_[i];
  }
  static void store(const RowLanes<T>& lanes, int64_t classes, int64_t factors, const V* totals, V factor, T* out) {
    lanes.put_run(out, classes * factors, totals, factor);
  }
  static void add(const RowLanes<T>& lanes, int64_t classes, int64_t factors, const V* totals, V factor,
                  double* shared) {
    for (int64_t i = 0; i < classes * factors; ++i) shared[i] += lanes.sum_over_rows(totals[i] * factor);
  }

 private:
  void flush() {
    for (int64_t k = 0; k < classes_; ++k)
      for_blocks(factors_, [&](int64_t first, auto count) {
        constexpr int kCount = decltype(count)::value;
        V* out = &sum_[k * factors_ + first];
        V sum[kCount];
        for (int j = 0; j < kCount; ++j) sum[j] = out[j];
        for (int64_t d = 0; d < pending_; ++d)
          for (int j = 0; j < kCount; ++j)
            sum[j] = lane<V>::fmadd(delta_[k * kPendingDraws + d], eta_[d * factors_ + first + j], sum[j]);
        for (int j = 0; j < kCount; ++j) out[j] = sum[j];
      });
    pending_ = 0;
  }

  int64_t classes_, factors_, pending_ = 0;
  Buffer<V> delta_;  // class, pending draw
  Buffer<V> eta_;    // pending draw, factor
  Buffer<V> sum_;    // class, factor
};

// Sums over a chunk of samples of d(loss)/d(parameter), not yet divided by the temperature. Their
// totals are in the order loc, scale, factor, factor scale, temperature.
template <class T, class Lanes>
class GradientSums {
  using V = Vec<T>;
  using L = lane<V>;
  using Product = OuterProduct<T, Lanes>;

 public:
  explicit GradientSums(const Head<T>& head)
      : head_(head), sums_(2 * head.classes + scaled_factors(head) + 1), factor_(head.classes, head.factors) {}

  static int64_t totals(const Head<T>& head) {
    return 2 * head.classes + Product::totals(head.classes, head.factors) + scaled_factors(head) + 1;
  }

  void clear() {
    for (int64_t i = 0; i < 2 * head_.classes + scaled_factors(head_) + 1; ++i) sums_[i] = V{};
    factor_.clear();
  }

  // `delta` is the gradient of this draw's utilities. The temperature's gradient is that of
  // utilities from `origin` on: where `delta` sums to zero, an origin near the large utilities
  // spares it cancellation.
  void add(const Sampler<T, Lanes>& sampler, const Draw<T>& draw, const V* __restrict delta, V origin) {
    const int64_t classes = head_.classes, factors = head_.factors;
    V* __restrict loc = sums_.get();
    V* __restrict scale = loc + classes;
    V* __restrict factor_scale = scale + classes;
    V along_utility{};  // summed here first: a long sum in one place would round more
    for (int64_t k = 0; k < classes; ++k) {
      loc[k] += delta[k];
      scale[k] = L::fmadd(delta[k], draw.eps[k], scale[k]);
      // a masked class has utility -inf and gradient 0
      const V utility = L::maximum(splat<V>(std::numeric_limits<T>::lowest()), draw.utility[k] - origin);
      along_utility = L::fmadd(delta[k], utility, along_utility);
    }
    factor_scale[scaled_factors(head_)] += along_utility;
    factor_.add(delta, draw.scaled_eta);

    if (head_.factor_scale)
      for_blocks(factors, [&](int64_t first, auto count) {
        constexpr int kCount = decltype(count)::value;
        V sum[kCount] = {};
        for (int64_t k = 0; k < classes; ++k)
          for (int j = 0; j < kCount; ++j) sum[j] = L::fmadd(delta[k], sampler.factor(k, first + j), sum[j]);
        for (int j = 0; j < kCount; ++j)
          factor_scale[first + j] = L::fmadd(draw.eta[first + j], sum[j], factor_scale[first + j]);
      });
  }

  void collapse(typename Lanes::Total* totals) {
    const int64_t classes = head_.classes, product = Product::totals(classes, head_.factors);
    Lanes::over_samples(sums_.get(), 2 * classes, totals);
    factor_.finish(totals + 2 * classes);
    Lanes::over_samples(&sums_[2 * classes], scaled_factors(head_) + 1, totals + 2 * classes + product);
  }

  // Stores the totals of a group of rows, times `factor`. What several rows share is added to
  // `shared`: the factor where it is shared, then the temperature.
  using X = typename Lanes::Total;
  static void store(const Head<T>& head, const Lanes& lanes, const X* totals, X factor, const HeadGradient<T>& grad,
                    double* shared) {
    const int64_t classes = head.classes, factors = head.factors;
    const X scale = factor / splat<X>(head.temperature);
    lanes.put_run(grad.loc, classes, totals, scale);
    lanes.put_run(grad.scale, classes, totals + classes, scale);
    totals += 2 * classes;
    if (head.shared_factor)
      Product::add(lanes, classes, factors, totals, scale, shared);
    else
      Product::store(lanes, classes, factors, totals, scale, grad.factor);
    totals += Product::totals(classes, factors);
    lanes.put_run(grad.factor_scale, scaled_factors(head), totals, scale);
    shared[shared_size(head) - 1] -= lanes.sum_over_rows(totals[scaled_factors(head)] * scale);
  }

  static int64_t shared_size(const Head<T>& head) { return (head.shared_factor ? head.classes * head.factors : 0) + 1; }

 private:
  static int64_t scaled_factors(const Head<T>& head) { return head.factor_scale ? head.factors : 0; }

  const Head<T>& head_;
  Buffer<V> sums_;  // loc, scale, factor scale, temperature
  Product factor_;
};

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
