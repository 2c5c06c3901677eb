// The covariance: a diagonal plus a low-rank factor (per row or shared, scaled or not).
//
// Forward, it turns noise into utilities (the noisy logits over the temperature); backward,
// it turns the gradient of the utilities into that of the head's parameters.
#pragma once

#include "lanes.h"

namespace hetnet {
namespace HETNET_CPU_NAMESPACE {

// One draw: a vector of samples (or of rows) of everything that is random.
template <class T>
struct Draw {
  const Vec<T>* eps;         // classes
  const Vec<T>* eta;         // factors
  const Vec<T>* scaled_eta;  // factors: eta times the factor scale
  const Vec<T>* utility;     // classes
  typename lane<Vec<T>>::Mask valid;
  int64_t sample;  // the draw's first
};

template <class T, class Lanes>
class Sampler {
  using V = Vec<T>;

 public:
  Sampler(const Head<T>& head, const Lanes& lanes)
      : head_(head),
        lanes_(lanes),
        loc_(head.classes),
        scale_(head.classes),
        factor_(head.classes * head.factors),
        factor_scale_(head.factor_scale ? head.factors : 0),
        noise_(head.classes + head.factors + 3),
        scaled_eta_(head.factor_scale ? head.factors : 0),
        mean_high_(head.classes),
        mean_low_(head.classes),
        utility_(head.classes) {
    bind(lanes);
  }

  // Moves on to another group of rows.
  void bind(const Lanes& lanes) {
    lanes_ = lanes;
    const int64_t classes = head_.classes, factors = head_.factors;
    loc_.bind(lanes, head_.loc, classes);
    scale_.bind(lanes, head_.scale, classes);
    // An infinite scale would give either infinity as a utility, and -inf passes for a masked
    // class: the whole row is to be NaN instead.
    V zero = scale_.zero_if_finite(classes);
    if (factors > 0) {
      factor_.bind(lanes, head_.factor, classes * factors);
      zero += factor_.zero_if_finite(classes * factors);
    }
    if (head_.factor_scale) {
      factor_scale_.bind(lanes, head_.factor_scale, factors);
      zero += factor_scale_.zero_if_finite(factors);
    }
    const V temperature = splat<V>(head_.temperature);
    for (int64_t k = 0; k < classes; ++k) {
      mean_high_[k] = loc_[k] / temperature;
      const V low = product_residual(loc_[k], mean_high_[k], temperature) / temperature;
      mean_low_[k] = zero + lane<V>::select(low == low, low, V{});  // NaN where the location is infinite
    }
  }

  const Lanes& lanes() const { return lanes_; }

  // The utilities of samples `sample`, `sample` + 1, ... up to the number of lanes.
  Draw<T> draw(int64_t sample) {
    fill_normals<T>(keys_, lanes_.position(head_, sample), head_.classes + head_.factors, noise_.get());

    const V* eta = noise_.get() + head_.classes;
    const V* scaled_eta = eta;
    if (head_.factor_scale) {
      for (int64_t r = 0; r < head_.factors; ++r) scaled_eta_[r] = eta[r] * factor_scale_[r];
      scaled_eta = scaled_eta_.get();
    }

    int64_t k = 0;
    for (; k + kBlock <= head_.classes; k += kBlock) combine<kBlock>(k, scaled_eta);
    combine_rest<kBlock - 1>(k, scaled_eta);
    return {noise_.get(), eta, scaled_eta, utility_.get(), lanes_.valid(head_, sample), sample};
  }

  HETNET_INLINE V factor(int64_t k, int64_t r) const { return factor_[k * head_.factors + r]; }

 private:
  // Classes whose sums are made together: enough to hide the latency of a multiply-add, and few
  // enough to stay in registers.
  static constexpr int kBlock = HETNET_VECTOR_REGISTERS / 2;

  template <int kClasses>
  HETNET_INLINE void combine_rest(int64_t k, const V* eta) {
    if constexpr (kClasses > 0) {
      if (head_.classes - k == kClasses)
        combine<kClasses>(k, eta);
      else
        combine_rest<kClasses - 1>(k, eta);
    }
  }

  // The noise is summed on its own before it meets the location, which may be much larger, and
  // the location over the temperature is kept in two parts: so the only rounding in the
  // utility's last place is that of one sum, which differs from sample to sample.
  template <int kClasses>
  HETNET_INLINE void combine(int64_t k, const V* __restrict eta) {
    using L = lane<V>;
    V noise[kClasses];
    for (int j = 0; j < kClasses; ++j) noise[j] = scale_[k + j] * noise_[k + j];
    for (int64_t r = 0; r < head_.factors; ++r)
      for (int j = 0; j < kClasses; ++j) noise[j] = L::fmadd(factor(k + j, r), eta[r], noise[j]);
    const V inverse_temperature = splat<V>(1 / head_.temperature);
    for (int j = 0; j < kClasses; ++j)
      utility_[k + j] = L::fmadd(noise[j], inverse_temperature, mean_low_[k + j]) + mean_high_[k + j];
  }

  const Head<T>& head_;
  const PhiloxKeys keys_{head_.seed};
  Lanes lanes_;
  typename Lanes::View loc_, scale_, factor_, factor_scale_;
  Buffer<V> noise_;  // eps, then eta
  Buffer<V> scaled_eta_;
  Buffer<V> mean_high_, mean_low_;  // location over temperature: rounded, and what that left
  Buffer<V> utility_;
};

// Sums over the samples of d(loss)/d(parameter), not yet divided by the temperature:
// loc, scale, factor, factor scale, temperature.
template <class T>
struct GradientSums {
  using V = Vec<T>;

  static int64_t size(const Head<T>& head) {
    return 2 * head.classes + head.classes * head.factors + (head.factor_scale ? head.factors : 0) + 1;
  }

  // `delta` is the gradient of this draw's utilities; `scratch` has room for the factors.
  // The temperature's gradient is that of utilities from `origin` on: where `delta` sums to
  // zero, an origin near the large utilities spares it cancellation.
  template <class Lanes>
  static void add(const Head<T>& head, const Sampler<T, Lanes>& sampler, const Draw<T>& draw, const V* __restrict delta,
                  V origin, V* __restrict scratch, V* __restrict sums) {
    using L = lane<V>;
    const int64_t classes = head.classes, factors = head.factors;
    V* loc = sums;
    V* scale = loc + classes;
    V* factor = scale + classes;
    V* factor_scale = factor + classes * factors;
    V* temperature = sums + size(head) - 1;

    V along_utility{};  // summed here first: a long sum in one place would round more
    for (int64_t k = 0; k < classes; ++k) {
      loc[k] += delta[k];
      scale[k] = L::fmadd(delta[k], draw.eps[k], scale[k]);
      // a masked class has utility -inf and gradient 0
      const V utility = L::maximum(splat<V>(std::numeric_limits<T>::lowest()), draw.utility[k] - origin);
      along_utility = L::fmadd(delta[k], utility, along_utility);
    }
    *temperature += along_utility;
    for (int64_t k = 0; k < classes; ++k)
      for (int64_t r = 0; r < factors; ++r)
        factor[k * factors + r] = L::fmadd(delta[k], draw.scaled_eta[r], factor[k * factors + r]);

    if (head.factor_scale) {
      for (int64_t r = 0; r < factors; ++r) scratch[r] = V{};
      for (int64_t k = 0; k < classes; ++k)
        for (int64_t r = 0; r < factors; ++r) scratch[r] = L::fmadd(delta[k], sampler.factor(k, r), scratch[r]);
      for (int64_t r = 0; r < factors; ++r) factor_scale[r] = L::fmadd(draw.eta[r], scratch[r], factor_scale[r]);
    }
  }

  // Stores the finished sums of a group of rows. What several rows share is added to
  // `shared`: the factor where it is shared, then the temperature.
  template <class Lanes>
  static void store(const Head<T>& head, const Lanes& lanes, const typename Lanes::Total* sums,
                    const HeadGradient<T>& grad, double* shared) {
    const int64_t classes = head.classes, factors = head.factors;
    using X = typename Lanes::Total;
    const X inverse_temperature = splat<X>(1) / splat<X>(head.temperature);
    for (int64_t k = 0; k < classes; ++k) lanes.put(grad.loc, classes, k, *sums++ * inverse_temperature);
    for (int64_t k = 0; k < classes; ++k) lanes.put(grad.scale, classes, k, *sums++ * inverse_temperature);
    for (int64_t i = 0; i < classes * factors; ++i) {
      const X value = *sums++ * inverse_temperature;
      if (head.shared_factor)
        *shared++ += lanes.sum_over_rows(value);
      else
        lanes.put(grad.factor, classes * factors, i, value);
    }
    if (head.factor_scale)
      for (int64_t r = 0; r < factors; ++r) lanes.put(grad.factor_scale, factors, r, *sums++ * inverse_temperature);
    *shared -= lanes.sum_over_rows(*sums * inverse_temperature);
  }

  static int64_t shared_size(const Head<T>& head) { return (head.shared_factor ? head.classes * head.factors : 0) + 1; }
};

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
