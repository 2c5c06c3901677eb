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

 public:
  explicit Sampler(const Head<T>& head)
      : head_(head),
        lanes_(head, 0),
        vectors_(Lanes::vectors(head.classes)),
        slices_(Lanes::slices(head)),
        scale_(head.classes),
        factor_(vectors_ * head.factors),
        noise_(head, slices_),
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
    if (head_.factors > 0) {
      const T* factor = head_.factor.data + lanes.row * head_.factor.row_stride;
      zero += pack_factor(factor, head_.classes, head_.factors, factor_.get());
    }
    if (head_.factor_scale) {
      const T* factor_scale = head_.factor_scale.data + lanes.row * head_.factor_scale.row_stride;
      for (int64_t r = 0; r < head_.factors; ++r) {
        const V by = splat<V>(factor_scale[r]);
        zero += by * V{};
        for (int64_t c = 0; c < vectors_; ++c) factor_[c * head_.factors + r] *= by;
      }
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
    noise_.fill(static_cast<uint64_t>(head_.row_offset) + static_cast<uint64_t>(lanes_.row), sample, slices);
    const int64_t stride = noise_.stride(), factors = head_.factors;
    const T* eta = noise_.eta();
    const V inverse_temperature = splat<V>(1 / head_.temperature);
    const Draw<T, Lanes> draw{sample, slices, vectors_, utility_.get(), noise_.eps(), eta, stride, lane<V>::iota() >= 0,
                              true,   given_};
    V* __restrict utility = utility_.get();
    for_blocks<2>(vectors_, [&](int64_t c, auto vectors) {
      constexpr int kVectors = decltype(vectors)::value;
      Center<V> center[kVectors];
      for (int i = 0; i < kVectors; ++i) center[i] = center_[c + i];
      for_blocks<kBlock / kVectors>(slices, [&](int64_t s, auto samples) {
        constexpr int kSamples = decltype(samples)::value;
        V noise[kVectors][kSamples] = {};
        for (int64_t r = 0; r < factors; ++r) {
          V factor[kVectors];
          for (int i = 0; i < kVectors; ++i) factor[i] = factor_[(c + i) * factors + r];
          for (int j = 0; j < kSamples; ++j) {
            const V normal = splat<V>(eta[(s + j) * stride + r]);
            for (int i = 0; i < kVectors; ++i) noise[i][j] = lane<V>::fmadd(factor[i], normal, noise[i][j]);
          }
        }
        for (int i = 0; i < kVectors; ++i)
          for (int j = 0; j < kSamples; ++j) {
            const V sum = lane<V>::fmadd(scale_[c + i], draw.eps(s + j, c + i), noise[i][j]);
            utility[(s + j) * vectors_ + c + i] = center[i].utility(sum, inverse_temperature);
          }
      });
    });
    return draw;
  }

 private:
  const Head<T>& head_;
  Lanes lanes_;
  const SampleNumbers<T>* given_ = nullptr;
  int64_t vectors_, slices_;
  typename Lanes::View scale_;
  Buffer<V> factor_;  // [vector][factor], times the factor scale
  ClassNoise<T> noise_;
  Buffer<Center<V>> center_;
  Buffer<V> utility_;  // [slice][vector]
};

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
