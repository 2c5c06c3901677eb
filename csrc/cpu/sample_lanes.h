// Samples of one row along the lanes: no data moves, but few samples leave lanes idle.
#pragma once

#include "../core/head.h"
#include "buffer.h"
#include "noise.h"

namespace hetnet {
namespace HETNET_CPU_NAMESPACE {

template <class T>
struct SampleLanes {
  using V = Vec<T>;
  using Total = double;
  using Number = T;       // a number of the group's row,
  using Double = double;  // and in double precision, in
  static constexpr int double_parts = 1;
  static constexpr int64_t rows_per_group = 1;
  static constexpr int64_t most_slices = 1;

  int64_t row;

  SampleLanes(const Head<T>&, int64_t group) : row(group) {}

  static int64_t samples_per_draw(const Head<T>&) { return lane<V>::width; }
  static int64_t slices(const Head<T>&) { return 1; }
  static int64_t vectors(int64_t classes) { return classes; }

  StreamPosition<Words<T>, uint32_t, uint32_t> position(const Head<T>& head, int64_t sample) const {
    const uint64_t stream_row = head.stream_row(row);
    return {Words<T>::sequence(static_cast<uint64_t>(sample)), static_cast<uint32_t>(stream_row),
            static_cast<uint32_t>(stream_row >> 32)};
  }
  // The lanes whose sample exists.
  typename lane<V>::Mask valid(const Head<T>& head, int64_t sample) const {
    const int64_t left = head.samples - sample;
    const int32_t count = left < lane<V>::width ? static_cast<int32_t>(left) : lane<V>::width;
    return lane<V>::iota() < count;
  }

  bool all_valid(const Head<T>& head, int64_t sample) const { return sample + lane<V>::width <= head.samples; }

  // Numbers of this row, as vectors.
  class View {
   public:
    explicit View(int64_t) {}
    void bind(const SampleLanes& lanes, RowData<T> rows, int64_t) { data_ = rows.data + lanes.row * rows.row_stride; }
    HETNET_INLINE V operator[](int64_t i) const { return splat<V>(data_[i]); }
    HETNET_INLINE Number number(int64_t i) const { return data_[i]; }
    // 0 if all numbers are finite, else NaN.
    V zero_if_finite(int64_t size) const {
      V sum{};
      int64_t i = 0;
      for (; i + lane<V>::width <= size; i += lane<V>::width) sum += lane<V>::load(data_ + i) * V{};
      for (; i < size; ++i) sum += splat<V>(data_[i]) * V{};
      return splat<V>(lane<V>::sum(sum));
    }

   private:
    const T* data_ = nullptr;
  };

  // out[sample][row][class] from a draw's vectors, and back.
  void scatter(const Head<T>& head, int64_t sample, int64_t, const V* by_class, T* out) const {
    const int64_t count = head.samples - sample, stride = head.rows * head.all_classes;
    scatter_lanes(by_class, head.classes, count, stride, out + sample * stride + row * head.all_classes);
  }
  void gather(const Head<T>& head, int64_t sample, int64_t, const T* in, V* by_class) const {
    const int64_t count = head.samples - sample, stride = head.rows * head.all_classes;
    gather_lanes(in + sample * stride + row * head.all_classes, head.classes, count, stride, by_class);
  }

  void put(T* out, int64_t row_size, int64_t i, Total value) const { out[row * row_size + i] = static_cast<T>(value); }
  void put_run(T* out, int64_t row_size, int64_t size, const Total* values, Total factor) const {
    for (int64_t i = 0; i < size; ++i) put(out, row_size, i, values[i] * factor);
  }

  Total get(const T* in) const { return in[row]; }
  V at_target(const V* by_class, const int64_t* target) const { return by_class[target[row]]; }
  void subtract_at_target(const Head<T>&, V* by_class, const int64_t* target, V value) const {
    by_class[target[row]] -= value;
  }

  static Total at(const V* by_class, int64_t k) { return by_class[k][0]; }
  static void set(V* by_class, int64_t k, Total value) { by_class[k] = splat<V>(static_cast<T>(value)); }

  static void class_totals(const V* by_class, int64_t classes, Total* totals) {
    int64_t k = 0;
    for (; k + lane<V>::width <= classes; k += lane<V>::width) {
      const V sums = lane<V>::sums(by_class + k);
      for (int l = 0; l < lane<V>::width; ++l) totals[k + l] = sums[l];
    }
    for (; k < classes; ++k) totals[k] = lane<V>::sum(by_class[k]);
  }
  static void class_maxima(const V* by_class, int64_t classes, Total* maxima) {
    for (int64_t k = 0; k < classes; ++k) maxima[k] = lane<V>::max_over_lanes(by_class[k]);
  }
  static Total sample_total(V value) { return lane<V>::sum(value); }
  static Total sample_maximum(V value) { return lane<V>::max_over_lanes(value); }
  static Total lane_total(V value) { return lane<V>::sum(value); }
  static void sum_over_classes(V*, int64_t) {}

  template <class Values>
  static V mean_of_draw(int64_t, typename lane<V>::Mask valid, const Values& values) {
    const V ones = lane<V>::select(valid, splat<V>(1), V{});
    return splat<V>(lane<V>::sum(values(0) * ones) / lane<V>::sum(ones));
  }
  V spread(Total value) const { return splat<V>(static_cast<T>(value)); }
  static HETNET_INLINE V vector(Number number) { return splat<V>(number); }
  static HETNET_INLINE Double to_double(Number number, int /*part*/) { return static_cast<double>(number); }
  static HETNET_INLINE void from_double(Double from, int /*part*/, Number& to) { to = static_cast<T>(from); }
  double sum_over_rows(Total value) const { return value; }
};

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
