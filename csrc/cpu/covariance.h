// The covariance: a diagonal plus a low-rank factor (per row or shared, scaled or not), which
// turns noise into utilities (the noisy logits over the temperature). gradient.h is its backward.
#pragma once

#include "blocks.h"
#include "lanes.h"

namespace hetnet {
namespace HETNET_CPU_NAMESPACE {

// One draw: a vector of samples (or of rows) of everything that is random.
template <class T>
struct Draw {
  const Vec<T>* eps;                  // classes
  const Vec<T>* eta;                  // factors
  const Vec<T>* scaled_eta;           // factors: eta times the factor scale
  const Vec<T>* utility;              // classes
  typename lane<Vec<T>>::Mask valid;  // lanes that stand for a sample
  bool all_valid;
  int64_t sample;  // the draw's first
};

template <class T, class Lanes>
class Sampler {
  using V = Vec<T>;

 public:
  // Draws nothing until it is bound to a group of rows.
  explicit Sampler(const Head<T>& head)
      : head_(head),
        lanes_(head, 0),
        loc_(head.classes),
        scale_(head.classes),
        factor_(head.classes * head.factors),
        factor_scale_(head.factor_scale ? head.factors : 0),
        noise_(head.classes + head.factors + 3),
        scaled_eta_(head.factor_scale ? head.factors : 0),
        mean_high_(head.classes),
        mean_low_(head.classes),
        utility_(head.classes) {}

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

    for_blocks(head_.classes, [&](int64_t k, auto count) { combine<decltype(count)::value>(k, scaled_eta); });
    return {noise_.get(), eta, scaled_eta, utility_.get(), lanes_.valid(head_, sample), lanes_.all_valid(head_, sample),
            sample};
  }

  HETNET_INLINE V factor(int64_t k, int64_t r) const { return factor_[k * head_.factors + r]; }

 private:
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

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
