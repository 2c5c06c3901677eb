// Rows along the lanes, at one sample: no lane is idle however few the samples, but the rows'
// parameters must be transposed first.
#pragma once

#include "../core/head.h"
#include "buffer.h"
#include "noise.h"

namespace hetnet {
namespace HETNET_CPU_NAMESPACE {

template <class T>
struct RowLanes {
  using V = Vec<T>;
  using Total = V;
  using Number = V;          // numbers of the group's rows,
  using Double = DoubleVec;  // and in double precision, in
  static constexpr int double_parts = sizeof(double) / sizeof(T);
  static constexpr int64_t rows_per_group = lane<V>::width;
  static constexpr int64_t most_slices = 1;

  int64_t first, count;  // lanes from `count` on repeat the last row, and are not stored

  RowLanes(const Head<T>& head, int64_t group) : first(group * lane<V>::width) {
    const int64_t left = head.rows - first;
    count = left < lane<V>::width ? left : lane<V>::width;
    uint64_t positions[lane<V>::width];
    for (int64_t l = 0; l < lane<V>::width; ++l) positions[l] = head.stream_row(row(l));
    positions_ = Words<T>::of(positions);
  }
  int64_t row(int64_t l) const { return first + (l < count ? l : count - 1); }

  static int64_t samples_per_draw(const Head<T>&) { return 1; }
  static int64_t slices(const Head<T>&) { return 1; }
  static int64_t vectors(int64_t classes) { return classes; }

  StreamPosition<uint32_t, Words<T>, Words<T>> position(const Head<T>&, int64_t sample) const {
    return {static_cast<uint32_t>(sample), positions_, word_ops<Words<T>>::high(positions_)};
  }
  typename lane<V>::Mask valid(const Head<T>&, int64_t) const { return lane<V>::iota() >= 0; }
  bool all_valid(const Head<T>&, int64_t) const { return true; }

  // Numbers of these rows, as vectors.
  class View {
   public:
    explicit View(int64_t size) : tile_(size) {}
    void bind(const RowLanes& lanes, RowData<T> rows, int64_t size) {
      gather_lanes(rows.data + lanes.first * rows.row_stride, size, lanes.count, rows.row_stride, tile_.get());
    }
    HETNET_INLINE V operator[](int64_t i) const { return tile_[i]; }
    HETNET_INLINE Number number(int64_t i) const { return tile_[i]; }
    V zero_if_finite(int64_t size) const {
      V sum{};
      for (int64_t i = 0; i < size; ++i) sum += tile_[i] * V{};
      return sum;
    }

   private:
    Buffer<V> tile_;
  };

  // out[sample][row][class] from a draw's vectors, and back.
  void scatter(const Head<T>& head, int64_t sample, int64_t, const V* by_class, T* out) const {
    scatter_lanes(by_class, head.classes, count, head.all_classes,
                  out + (sample * head.rows + first) * head.all_classes);
  }
  void gather(const Head<T>& head, int64_t sample, int64_t, const T* in, V* by_class) const {
    gather_lanes(in + (sample * head.rows + first) * head.all_classes, head.classes, count, head.all_classes, by_class);
  }

  void put(T* out, int64_t row_size, int64_t i, Total value) const {
    for (int64_t l = 0; l < count; ++l) out[(first + l) * row_size + i] = value[l];
  }
  void put_run(T* out, int64_t row_size, int64_t size, const Total* values, Total factor) const {
    scatter_lanes(values, size, count, row_size, out + first * row_size, factor);
  }

  Total get(const T* in) const {
    V value{};
    for (int64_t l = 0; l < lane<V>::width; ++l) value[l] = in[row(l)];
    return value;
  }
  V at_target(const V* by_class, const int64_t* target) const {
    V value{};
    for (int64_t l = 0; l < lane<V>::width; ++l) value[l] = by_class[target[row(l)]][l];
    return value;
  }
  void subtract_at_target(const Head<T>&, V* by_class, const int64_t* target, V value) const {
    for (int64_t l = 0; l < lane<V>::width; ++l) by_class[target[row(l)]][l] -= value[l];
  }

  static Total at(const V* by_class, int64_t k) { return by_class[k]; }
  static void set(V* by_class, int64_t k, Total value) { by_class[k] = value; }

  static void class_totals(const V* by_class, int64_t classes, Total* totals) {
    for (int64_t k = 0; k < classes; ++k) totals[k] = by_class[k];
  }
  static void class_maxima(const V* by_class, int64_t classes, Total* maxima) {
    class_totals(by_class, classes, maxima);
  }
  static Total sample_total(V value) { return value; }
  static Total sample_maximum(V value) { return value; }
  static Total lane_total(V value) { return value; }
  static void sum_over_classes(V*, int64_t) {}

  template <class Values>
  static V mean_of_draw(int64_t, typename lane<V>::Mask, const Values& values) {
    return values(0);
  }
  V spread(Total value) const { return value; }
  static HETNET_INLINE V vector(Number numbers) { return numbers; }
  using Part = typename vec_of<T>::as_many_as_doubles;
  static HETNET_INLINE Double to_double(const Number& numbers, int part) {
    Part from;
    std::memcpy(&from, reinterpret_cast<const char*>(&numbers) + part * sizeof(from), sizeof(from));
    return __builtin_convertvector(from, Double);
  }
  static HETNET_INLINE void from_double(Double from, int part, Number& to) {
    const Part numbers = __builtin_convertvector(from, Part);
    std::memcpy(reinterpret_cast<char*>(&to) + part * sizeof(numbers), &numbers, sizeof(numbers));
  }
  double sum_over_rows(Total value) const {
    double sum = 0;
    for (int64_t l = 0; l < count; ++l) sum += value[l];
    return sum;
  }

 private:
  Words<T> positions_;  // of the rows, in the noise stream
};

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
