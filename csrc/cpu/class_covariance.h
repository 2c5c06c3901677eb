// The covariance with classes along the lanes. Its products are those of small matrices: blocks of
// classes and samples stay in registers while the factors pass by.
#pragma once

#include "class_noise.h"
#include "covariance.h"

namespace hetnet {
namespace HETNET_CPU_NAMESPACE {

// Writes a row-major matrix of classes x factors as [vector of classes][factor]. Returns 0 if all
// of its numbers are finite, else NaN.
template <class T>
Vec<T> pack_factor(const T* factor, int64_t classes, int64_t factors, Vec<T>* packed) {
  using V = Vec<T>;
  constexpr int64_t kWidth = lane<V>::width;
  const int64_t size = classes * factors;
  V zero{};
  for (int64_t c = 0; c * kWidth < classes; ++c)
    for (int64_t r = 0; r < factors; r += kWidth) {
      const int64_t count = factors - r < kWidth ? factors - r : kWidth;
      V square[kWidth];
      for (int64_t l = 0; l < kWidth; ++l) {
        const int64_t i = (c * kWidth + l) * factors + r;  // what follows the factors is dropped below
        square[l] = i < size ? lane<V>::load_part(factor + i, size - i) : V{};
        zero += square[l] * V{};
      }
      lane<V>::transpose(square);
      for (int64_t i = 0; i < count; ++i) packed[c * factors + r + i] = square[i];
    }
  return splat<V>(lane<V>::sum(zero));
}

template <class T>
class Sampler<T, ClassLanes<T>> {
  using V = Vec<T>;
  using Lanes = ClassLanes<T>;
  static constexpr int64_t kSlices = Lanes::most_slices;

 public:
  explicit Sampler(const Head<T>& head)
      : head_(head),
        lanes_(head, 0),
        vectors_(Lanes::vectors(head.classes)),
        slices_(Lanes::slices(head)),
        scale_(head.classes),
        factor_(vectors_ * head.factors),
        noise_(head, slices_),
        eta_(head.factors * kSlices),
        center_(vectors_),
        utility_(slices_ * vectors_) {}

  // `given` are numbers of the row's samples, where its classes are a tile.
  void bind(const Lanes& lanes, const SampleNumbers<T>* given = nullptr) {
    lanes_ = lanes;
    given_ = given;
    scale_.bind(lanes, head_.scale, head_.classes);
    V zero{};
    for (int64_t c = 0; c < vectors_; ++c) zero += scale_[c] * V{};
    zero = splat<V>(lane<V>::sum(zero));
    if (head_.factors > 0 && !(packed_ && head_.shared_factor)) {
      const T* factor = head_.factor.data + lanes.row * head_.factor.row_stride;
      factor_zero_ = pack_factor(factor, head_.classes, head_.factors, factor_.get());
      packed_ = true;
    }
    zero += factor_zero_;
    if (head_.factor_scale) {
      factor_scale_ = head_.factor_scale.data + lanes.row * head_.factor_scale.row_stride;
      for (int64_t r = 0; r < head_.factors; ++r) zero += splat<V>(factor_scale_[r]) * V{};
    }
    const T* loc = head_.loc.data + lanes.row * head_.loc.row_stride;
    for (int64_t c = 0; c < vectors_; ++c) {
      const int64_t k = c * Lanes::width;
      const V numbers = lane<V>::load_part(loc + k, head_.classes - k, -std::numeric_limits<T>::infinity());
      center_[c] = Center<V>(numbers, splat<V>(head_.temperature), zero);
    }
  }

  const Lanes& lanes() const { return lanes_; }

  Draw<T, Lanes> draw(int64_t sample) {
    const int64_t left = head_.samples - sample, slices = left < slices_ ? left : slices_;
    noise_.fill(head_.stream_row(lanes_.row), sample, slices);
    pack_eta(slices);
    for_blocks<2>(vectors_, [&](int64_t c, auto vectors) {
      for_blocks<kBlock / decltype(vectors)::value>(
          slices, [&](int64_t s, auto samples) { set_utilities(c, vectors, s, samples); });
    });
    return {sample, slices, vectors_, utility_.get(), noise_.eps(), noise_.eta(), noise_.stride(), lane<V>::iota() >= 0,
            true,   given_};
  }

 private:
  // The factors' normals times their scale, with the samples side by side.
  void pack_eta(int64_t slices) {
    for (int64_t r = 0; r < head_.factors; ++r) {
      const T by = factor_scale_ ? factor_scale_[r] : T(1);
      for (int64_t s = 0; s < slices; ++s) eta_[r * kSlices + s] = noise_.eta()[s * noise_.stride() + r] * by;
    }
  }

  // Of kVectors vectors of classes from `c` on, and kSamples samples from `s` on.
  template <int kVectors, int kSamples>
  HETNET_INLINE void set_utilities(int64_t c, std::integral_constant<int, kVectors>, int64_t s,
                                   std::integral_constant<int, kSamples>) {
    const int64_t factors = head_.factors, vectors = vectors_, stride = noise_.stride();
    V noise[kVectors][kSamples] = {};
    const V* __restrict factor = factor_.get() + c * factors;
    const T* __restrict eta = eta_.get() + s;
    for (int64_t r = 0; r < factors; ++r, ++factor, eta += kSlices) {
      V column[kVectors];
      HETNET_UNROLL
      for (int i = 0; i < kVectors; ++i) column[i] = factor[i * factors];
      HETNET_UNROLL
      for (int j = 0; j < kSamples; ++j) {
        const V normal = splat<V>(eta[j]);
        HETNET_UNROLL
        for (int i = 0; i < kVectors; ++i) noise[i][j] = lane<V>::fmadd(column[i], normal, noise[i][j]);
      }
    }
    const V inverse_temperature = splat<V>(1 / head_.temperature);
    const T* __restrict eps = noise_.eps() + s * stride + c * Lanes::width;
    V* __restrict utility = utility_.get() + s * vectors + c;
    HETNET_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const V scale = scale_[c + i];
      const Center<V> center = center_[c + i];
      HETNET_UNROLL
      for (int j = 0; j < kSamples; ++j) {
        const V sum = lane<V>::fmadd(scale, lane<V>::load(eps + j * stride + i * Lanes::width), noise[i][j]);
        utility[j * vectors + i] = center.utility(sum, inverse_temperature);
      }
    }
  }

  const Head<T>& head_;
  Lanes lanes_;
  const SampleNumbers<T>* given_ = nullptr;
  int64_t vectors_, slices_;
  typename Lanes::View scale_;
  Buffer<V> factor_;  // [vector][factor]
  V factor_zero_{};   // 0 if all of its numbers are finite, else NaN
  bool packed_ = false;
  const T* factor_scale_ = nullptr;  // of the row
  ClassNoise<T> noise_;
  Buffer<T> eta_;  // [factor][slice], times the factor scale
  Buffer<Center<V>> center_;
  Buffer<V> utility_;  // [slice][vector]
};

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
