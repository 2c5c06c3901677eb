// The covariance: a diagonal plus a low-rank factor (per row or shared, scaled or not), which
// turns noise into utilities (the noisy logits over the temperature). gradient.h is its backward,
// class_covariance.h the same for classes along the lanes.
#pragma once

#include "../core/center.h"
#include "../core/cholesky.h"
#include "blocks.h"
#include "lanes.h"

namespace hetnet {
namespace HETNET_CPU_NAMESPACE {

// What a tile of classes must be told about each sample, since it takes all classes to know.
template <class T>
struct SampleNumbers {
  T* max;          // largest utility
  T* inverse_sum;  // 1 / sum_k exp(u_k - max)
  T* log_sum;      // log sum_k exp(u_k - max)
  T* weight;       // a reduction's own
};

// One draw: all that is random of some samples of a group of rows.
template <class T, class Lanes>
struct Draw {
  using V = Vec<T>;
  int64_t sample;                // the first
  int64_t filled_slices;         // slices that stand for samples
  int64_t vectors;               // a slice's, for the classes
  const V* utility;              // [slice][vector]
  const T* normals;              // of a slice: eps, a vector for each of `vectors`,
  const T* eta;                  // and eta, a vector a factor, or a number where classes lie along the lanes
  int64_t stride;                // from one slice's normals to the next's
  typename lane<V>::Mask valid;  // lanes that stand for a sample
  bool all_valid;
  const SampleNumbers<T>* given;  // of all samples, where the classes are a tile

  HETNET_INLINE int64_t slices() const { return Lanes::most_slices == 1 ? 1 : filled_slices; }
  HETNET_INLINE V eps(int64_t slice, int64_t vector) const {
    return lane<V>::load(normals + slice * stride + vector * lane<V>::width);
  }
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
        lower_(head.cholesky ? head.classes * head.classes : 0),
        noise_(head.classes + head.factors + 3),
        scaled_eta_(head.factor_scale ? head.factors : 0),
        center_(head.classes),
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
    if (head_.cholesky) factorize();
    const V temperature = splat<V>(head_.temperature);
    for (int64_t k = 0; k < classes; ++k) center_[k] = Center<V>(loc_[k], temperature, zero);
  }

  const Lanes& lanes() const { return lanes_; }

  // The utilities of samples `sample`, `sample` + 1, ... up to the number of lanes.
  Draw<T, Lanes> draw(int64_t sample) {
    const int64_t classes = head_.classes, factors = head_.factors;
    const int64_t dimensions = head_.cholesky ? classes : classes + factors;
    fill_normals<T>(keys_, lanes_.position(head_, sample), dimensions, noise_.get());

    const V* eta = noise_.get() + classes;
    const V* scaled_eta = eta;
    if (head_.cholesky) {
      for_blocks(classes, [&](int64_t k, auto count) {
        constexpr int kCount = decltype(count)::value;
        V noise[kCount] = {};
        add_products<kCount>(noise, k + kCount, noise_.get(),
                             [&](int64_t j, int64_t r) { return Lanes::vector(lower_[(k + j) * classes + r]); });
        set_utilities<kCount>(k, noise);
      });
    } else {
      if (head_.factor_scale) {
        for (int64_t r = 0; r < factors; ++r) scaled_eta_[r] = eta[r] * factor_scale_[r];
        scaled_eta = scaled_eta_.get();
      }
      for_blocks(classes, [&](int64_t k, auto count) {
        constexpr int kCount = decltype(count)::value;
        // The diagonal's noise last: where it is large, the products would be rounded to its last place.
        V noise[kCount] = {};
        add_products<kCount>(noise, factors, scaled_eta, [&](int64_t j, int64_t r) { return factor(k + j, r); });
        HETNET_UNROLL
        for (int j = 0; j < kCount; ++j) noise[j] = lane<V>::fmadd(scale_[k + j], noise_[k + j], noise[j]);
        set_utilities<kCount>(k, noise);
      });
    }
    return {sample,
            1,
            classes,
            utility_.get(),
            reinterpret_cast<const T*>(noise_.get()),
            reinterpret_cast<const T*>(eta),
            0,
            lanes_.valid(head_, sample),
            lanes_.all_valid(head_, sample),
            nullptr};
  }

  HETNET_INLINE V factor(int64_t k, int64_t r) const { return factor_[k * head_.factors + r]; }
  HETNET_INLINE V factor_scale(int64_t r) const { return factor_scale_[r]; }

 private:
  // In double precision: what rounding leaves of a singular covariance is as small as its root.
  void factorize() {
    const int64_t classes = head_.classes, factors = head_.factors;
    Buffer<typename Lanes::Double> exact(classes * classes);
    for (int64_t i = 0; i < classes * classes; ++i) exact[i] = typename Lanes::Double{};  // above the diagonal
    for (int part = 0; part < Lanes::double_parts; ++part) {
      const auto scale = [&](int64_t k) { return Lanes::to_double(scale_.number(k), part); };
      const auto factor = [&](int64_t k, int64_t r) {
        const auto number = Lanes::to_double(factor_.number(k * factors + r), part);
        return head_.factor_scale ? number * Lanes::to_double(factor_scale_.number(r), part) : number;
      };
      const CholeskyFactor<typename Lanes::Double, decltype(scale), decltype(factor)> lower(classes, factors, scale,
                                                                                            factor, exact.get());
      for (int64_t i = 0; i < classes; ++i) {
        for (int64_t j = 0; j < i; ++j) lower.set_below_pivot(i, j);
        lower.set_pivot(i);
      }
      for (int64_t i = 0; i < classes * classes; ++i) Lanes::from_double(exact[i], part, lower_[i]);
    }
  }

  // noise[j] += sum over i < count of matrix(j, i) normals[i]
  template <int kCount, class Matrix>
  static HETNET_INLINE void add_products(V (&noise)[kCount], int64_t count, const V* __restrict normals,
                                         const Matrix& matrix) {
    for (int64_t i = 0; i < count; ++i) HETNET_UNROLL
    for (int j = 0; j < kCount; ++j) noise[j] = lane<V>::fmadd(matrix(j, i), normals[i], noise[j]);
  }

  template <int kCount>
  HETNET_INLINE void set_utilities(int64_t k, const V (&noise)[kCount]) {
    const V inverse_temperature = splat<V>(1 / head_.temperature);
    HETNET_UNROLL
    for (int j = 0; j < kCount; ++j) utility_[k + j] = center_[k + j].utility(noise[j], inverse_temperature);
  }

  const Head<T>& head_;
  const PhiloxKeys keys_{head_.seed};
  Lanes lanes_;
  typename Lanes::View loc_, scale_, factor_, factor_scale_;
  Buffer<typename Lanes::Number> lower_;  // Cholesky factor, where it is asked for
  Buffer<V> noise_;                       // eps, then eta
  Buffer<V> scaled_eta_;
  Buffer<Center<V>> center_;
  Buffer<V> utility_;
};

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
