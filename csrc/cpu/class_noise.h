// The noise source for classes along the lanes: the same normals as noise.h, in the order of their
// dimensions.
//
// The lanes are Philox calls, each of four dimensions. The calls of several samples follow one
// another without a gap, so that no lane is idle whatever the number of dimensions.
#pragma once

#include "../core/head.h"
#include "buffer.h"
#include "noise.h"

namespace hetnet {
namespace HETNET_CPU_NAMESPACE {

template <class T>
class ClassNoise {
  using V = Vec<T>;
  using W = Words<T>;
  using Ops = word_ops<W>;
  static constexpr int64_t kWidth = lane<V>::width;

 public:
  // Of a head's classes and factors, for up to `samples` samples at a time.
  ClassNoise(const Head<T>& head, int64_t samples)
      : keys_(head.seed),
        first_call_(head.first_class / 4),
        class_calls_((head.first_class + head.classes + 3) / 4 - first_call_),
        samples_(samples),
        calls_(class_calls_ + factor_calls(head)),
        starts_(vectors(samples)),
        normals_(vectors(samples) * 4 * kWidth + kWidth) {
    // Whole vectors are read, which may end beyond the last normal.
    for (int64_t i = 0; i < vectors(samples) * 4 * kWidth + kWidth; ++i) normals_[i] = 0;
    start(0);
  }

  // Draws samples `first`, `first` + 1, ...
  void fill(uint64_t row, int64_t first, int64_t samples) {
    if (static_cast<uint32_t>(row >> 32) != row_high_) start(static_cast<uint32_t>(row >> 32));
    const uint64_t row_product = word_ops<uint32_t>::multiply(kPhiloxMultipliers[1], static_cast<uint32_t>(row));
    const uint32_t row_product_high = word_ops<uint32_t>::high(row_product);
    const uint32_t row_product_low = word_ops<uint32_t>::low(row_product);
    for (int64_t i = 0; i < vectors(samples); ++i) {
      // The rest of the first two rounds.
      const Start& start = starts_[i];
      const W sample = Ops::high(start.call_product_low_and_sample) + static_cast<uint32_t>(first);
      const W product = Ops::multiply(kPhiloxMultipliers[0], xor_words(sample, row_product_high, keys_.words[0][0]));
      const PhiloxBlock<W> words = philox4x32_10<2>(
          xor_words(Ops::high(start.second_product), row_product_low, keys_.words[1][0]),
          Ops::low(start.second_product),
          xor_words(Ops::high(product), Ops::low(start.call_product_low_and_sample), keys_.words[1][1]),
          Ops::low(product), keys_);
      V normals[4], runs[4];
      normal_pair<V>(words.w0.lanes(), words.w1.lanes(), normals[0], normals[1]);
      normal_pair<V>(words.w2.lanes(), words.w3.lanes(), normals[2], normals[3]);
      lane<V>::interleave(normals, runs);
      for (int j = 0; j < 4; ++j) lane<V>::store(&normals_[(i * 4 + j) * kWidth], runs[j]);
    }
  }

  // The normals of the last `fill`: class k of its sample s has eps()[s * stride() + k].
  const T* eps() const { return normals_.get(); }
  const T* eta() const { return normals_.get() + eta_; }
  int64_t stride() const { return 4 * calls_; }

 private:
  // What the first two rounds make of the counter's words that are the same in every fill: the call
  // and the high word of the row.
  struct Start {
    W call_product_low_and_sample;  // in the halves; the sample counts from the first
    W second_product;
  };

  // The factors' dimensions follow those of all classes, and may begin in the call of the last ones.
  int64_t factor_calls(const Head<T>& head) {
    const int64_t call = head.all_classes / 4, after_classes = first_call_ + class_calls_;
    factor_call_ = call < after_classes ? after_classes : call;
    eta_ = call < after_classes ? head.all_classes - head.first_class : 4 * class_calls_ + head.all_classes % 4;
    const int64_t end = (head.all_classes + head.factors + 3) / 4;
    return head.factors > 0 && end > factor_call_ ? end - factor_call_ : 0;
  }

  int64_t vectors(int64_t samples) const { return (samples * calls_ + kWidth - 1) / kWidth; }

  void start(uint32_t row_high) {
    row_high_ = row_high;
    int64_t call_of_sample = 0;
    uint64_t sample = 0;
    for (int64_t i = 0; i < vectors(samples_); ++i) {
      uint64_t first[kWidth], second[kWidth];
      for (int run = 0; run < kWidth; ++run) {
        using Number = word_ops<uint32_t>;
        const int64_t call =
            call_of_sample < class_calls_ ? first_call_ + call_of_sample : factor_call_ + call_of_sample - class_calls_;
        const uint64_t product = Number::multiply(kPhiloxMultipliers[0], static_cast<uint32_t>(call));
        const int l = lane<V>::lane_of_run(run);
        first[l] = sample << 32 | Number::low(product);
        second[l] = Number::multiply(kPhiloxMultipliers[1],
                                     hetnet::xor_words(Number::high(product), row_high, keys_.words[0][1]));
        if (++call_of_sample == calls_) ++sample, call_of_sample = 0;
      }
      starts_[i] = {W::of(first), W::of(second)};
    }
  }

  PhiloxKeys keys_;
  int64_t first_call_, class_calls_, factor_call_, eta_;  // of the classes and of the factors; place of the first eta
  int64_t samples_, calls_;
  uint32_t row_high_;
  Buffer<Start> starts_;
  Buffer<T> normals_;
};

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
