// Classes of one row along the lanes: for heads with many classes. A draw is several samples, a
// slice each, so that the low-rank products are products of small matrices.
#pragma once

#include "../core/head.h"
#include "buffer.h"
#include "noise.h"

namespace hetnet {
namespace HETNET_CPU_NAMESPACE {

template <class T>
struct ClassLanes {
  using V = Vec<T>;
  using Total = double;
  static constexpr int64_t width = lane<V>::width;
  static constexpr int64_t rows_per_group = 1;
  static constexpr int64_t most_slices = 16;

  int64_t row;

  ClassLanes(const Head<T>&, int64_t group) : row(group) {}

  // As many samples as keep a draw in the second-level cache: a power of two.
  static int64_t samples_per_draw(const Head<T>& head) {
    constexpr int64_t kMostNumbers = 65536 / sizeof(T);
    int64_t samples = most_slices;
    while (samples > 1 && samples * head.classes > kMostNumbers) samples /= 2;
    return samples;
  }
  static int64_t slices(const Head<T>& head) {
    return head.samples < samples_per_draw(head) ? head.samples : samples_per_draw(head);
  }
  // The last vector's lanes beyond the classes hold classes of probability 0.
  static int64_t vectors(int64_t classes) { return (classes + width - 1) / width; }

  // A number of this row for each class, as vectors.
  class View {
   public:
    explicit View(int64_t classes) : vectors_(vectors(classes)) {}
    void bind(const ClassLanes& lanes, RowData<T> rows, int64_t classes) {
      const T* data = rows.data + lanes.row * rows.row_stride;
      for (int64_t c = 0; c < vectors(classes); ++c)
        vectors_[c] = lane<V>::load_part(data + c * width, classes - c * width);
    }
    HETNET_INLINE V operator[](int64_t c) const { return vectors_[c]; }

   private:
    Buffer<V> vectors_;
  };

  // out[sample][row][class] from a draw's vectors, and back.
  void scatter(const Head<T>& head, int64_t sample, int64_t slices, const V* by_class, T* out) const {
    for_vectors(head, sample, slices, [&](int64_t at, int64_t count, int64_t vector) {
      lane<V>::store_part(out + at, count, by_class[vector]);
    });
  }
  void gather(const Head<T>& head, int64_t sample, int64_t slices, const T* in, V* by_class) const {
    for_vectors(head, sample, slices, [&](int64_t at, int64_t count, int64_t vector) {
      by_class[vector] = lane<V>::load_part(in + at, count);
    });
  }

  void put(T* out, int64_t row_size, int64_t i, Total value) const { out[row * row_size + i] = static_cast<T>(value); }
  void put_run(T* out, int64_t row_size, int64_t size, const Total* values, Total factor) const {
    for (int64_t i = 0; i < size; ++i) put(out, row_size, i, values[i] * factor);
  }

  Total get(const T* in) const { return in[row]; }
  V at_target(const V* by_class, const int64_t* target) const { return splat<V>(numbers(by_class)[target[row]]); }
  // Where the target is among the classes of the tile.
  void subtract_at_target(const Head<T>& head, V* by_class, const int64_t* target, V value) const {
    const int64_t k = target[row] - head.first_class;
    if (k >= 0 && k < head.classes) numbers(by_class)[k] -= value[0];
  }

  static Total at(const V* by_class, int64_t k) { return numbers(by_class)[k]; }
  static void set(V* by_class, int64_t k, Total value) { numbers(by_class)[k] = static_cast<T>(value); }

  static void class_totals(const V* by_class, int64_t classes, Total* totals) {
    for (int64_t k = 0; k < classes; ++k) totals[k] = numbers(by_class)[k];
  }
  static void class_maxima(const V* by_class, int64_t classes, Total* maxima) {
    class_totals(by_class, classes, maxima);
  }
  static Total sample_total(V value) { return value[0]; }
  static Total sample_maximum(V value) { return value[0]; }
  static Total lane_total(V value) { return lane<V>::sum(value); }
  static void sum_over_classes(V* partial, int64_t slices) {
    for (int64_t s = 0; s < slices; ++s) partial[s] = splat<V>(lane<V>::sum(partial[s]));
  }

  // The mean of a power of two of equal numbers is that number.
  template <class Values>
  static V mean_of_draw(int64_t slices, typename lane<V>::Mask, const Values& values) {
    int64_t count = 1;
    while (2 * count <= slices) count *= 2;
    V sums[most_slices];
    for (int64_t s = 0; s < count; ++s) sums[s] = values(s);
    for (int64_t half = count / 2; half > 0; half /= 2)
      for (int64_t s = 0; s < half; ++s) sums[s] += sums[s + half];
    return sums[0] * splat<V>(1 / static_cast<T>(count));
  }
  V spread(Total value) const { return splat<V>(static_cast<T>(value)); }
  double sum_over_rows(Total value) const { return value; }

 private:
  // Calls f(element of the tensor, numbers from there on in the row, vector of the draw).
  template <class F>
  void for_vectors(const Head<T>& head, int64_t sample, int64_t slices, const F& f) const {
    for (int64_t s = 0; s < slices; ++s)
      for (int64_t c = 0; c < vectors(head.classes); ++c)
        f(((sample + s) * head.rows + row) * head.all_classes + c * width, head.classes - c * width,
          s * vectors(head.classes) + c);
  }

  static T* numbers(V* vectors) { return reinterpret_cast<T*>(vectors); }
  static const T* numbers(const V* vectors) { return reinterpret_cast<const T*>(vectors); }
};

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
