// What the vector lanes stand for: samples of one row, or rows at one sample.
//
// Samples along the lanes need no data movement, but waste lanes where there are few
// samples; rows along the lanes need the rows' parameters transposed once. Both give the
// same normals to the same (row, sample, dimension).
//
// `Total` is what a sum over all samples of one row group becomes: a number a row. It is
// a double where a group is one row, and a vector where each lane is a row.
#pragma once

#include "head.h"
#include "noise.h"
#include "scratch.h"

namespace hetnet {
namespace HETNET_CPU_NAMESPACE {

// An array that is aligned for vectors.
template <class E>
class Buffer {
 public:
  explicit Buffer(int64_t size)
      : bytes_(sizeof(E) * static_cast<std::size_t>(size)), data_(static_cast<E*>(allocate_scratch(bytes_))) {}
  ~Buffer() { free_scratch(data_, bytes_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  E* get() const { return data_; }
  E& operator[](int64_t i) const { return data_[i]; }

 private:
  std::size_t bytes_;
  E* data_;
};

template <class T>
struct SampleLanes {
  using V = Vec<T>;
  using Total = double;
  using Number = T;       // a number of the group's row,
  using Double = double;  // and in double precision, in
  static constexpr int double_parts = 1;
  static constexpr int64_t rows_per_group = 1;
  static constexpr int64_t samples_per_draw = lane<V>::width;

  int64_t row;

  SampleLanes(const Head<T>&, int64_t group) : row(group) {}

  StreamPosition<Words<T>, uint32_t, uint32_t> position(const Head<T>& head, int64_t sample) const {
    const uint64_t stream_row = static_cast<uint64_t>(head.row_offset) + static_cast<uint64_t>(row);
    return {Words<T>::sequence_low(static_cast<uint64_t>(sample)), static_cast<uint32_t>(stream_row),
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

  // out[sample][row][k] for every sample of a draw, and back.
  void scatter(const Head<T>& head, int64_t sample, int64_t k, V value, T* out) const {
    for (int64_t l = 0; l < lane<V>::width && sample + l < head.samples; ++l)
      out[((sample + l) * head.rows + row) * head.classes + k] = value[l];
  }
  V gather(const Head<T>& head, int64_t sample, int64_t k, const T* in) const {
    V value{};
    for (int64_t l = 0; l < lane<V>::width && sample + l < head.samples; ++l)
      value[l] = in[((sample + l) * head.rows + row) * head.classes + k];
    return value;
  }

  void put(T* out, int64_t row_size, int64_t i, Total value) const { out[row * row_size + i] = static_cast<T>(value); }
  // A whole run of numbers, times `factor`.
  void put_run(T* out, int64_t size, const Total* values, Total factor) const {
    for (int64_t i = 0; i < size; ++i) put(out, size, i, values[i] * factor);
  }
  // A number of the row, or one of its class target[row] out of a vector a class.
  Total get(const T* in) const { return in[row]; }
  V at_target(const V* by_class, const int64_t* target) const { return by_class[target[row]]; }
  void subtract_at_target(V* by_class, const int64_t* target, V value) const { by_class[target[row]] -= value; }
  // Sums over a draw's samples.
  static void over_samples(const V* values, int64_t size, Total* out) {
    int64_t i = 0;
    for (; i + lane<V>::width <= size; i += lane<V>::width) {
      const V sums = lane<V>::sums(values + i);
      for (int l = 0; l < lane<V>::width; ++l) out[i + l] = sums[l];
    }
    for (; i < size; ++i) out[i] = lane<V>::sum(values[i]);
  }
  static Total max_over_samples(V value) { return lane<V>::max_over_lanes(value); }
  // Mean over a draw's samples of one row.
  static V mean(V value, typename lane<V>::Mask valid) {
    const V ones = lane<V>::select(valid, splat<V>(1), V{});
    return splat<V>(lane<V>::sum(value * ones) / lane<V>::sum(ones));
  }
  V spread(Total value) const { return splat<V>(static_cast<T>(value)); }
  static HETNET_INLINE V vector(Number number) { return splat<V>(number); }
  static HETNET_INLINE Double to_double(Number number, int /*part*/) { return static_cast<double>(number); }
  static HETNET_INLINE void from_double(Double from, int /*part*/, Number& to) { to = static_cast<T>(from); }
  static Total total(V same_on_all_lanes) { return same_on_all_lanes[0]; }
  double sum_over_rows(Total value) const { return value; }
};

template <class T>
struct RowLanes {
  using V = Vec<T>;
  using Total = V;
  using Number = V;          // numbers of the group's rows,
  using Double = DoubleVec;  // and in double precision, in
  static constexpr int double_parts = sizeof(double) / sizeof(T);
  static constexpr int64_t rows_per_group = lane<V>::width;
  static constexpr int64_t samples_per_draw = 1;

  int64_t first, count;  // lanes from `count` on repeat the last row, and are not stored

  RowLanes(const Head<T>& head, int64_t group) : first(group * lane<V>::width) {
    const int64_t left = head.rows - first;
    count = left < lane<V>::width ? left : lane<V>::width;
  }
  int64_t row(int64_t l) const { return first + (l < count ? l : count - 1); }

  StreamPosition<uint32_t, Words<T>, Words<T>> position(const Head<T>& head, int64_t sample) const {
    const uint64_t stream_row = static_cast<uint64_t>(head.row_offset) + static_cast<uint64_t>(first);
    return {static_cast<uint32_t>(sample), Words<T>::sequence_low(stream_row), Words<T>::sequence_high(stream_row)};
  }
  typename lane<V>::Mask valid(const Head<T>&, int64_t) const { return lane<V>::iota() >= 0; }
  bool all_valid(const Head<T>&, int64_t) const { return true; }

  class View {
   public:
    explicit View(int64_t size) : tile_(size) {}
    void bind(const RowLanes& lanes, RowData<T> rows, int64_t size) {
      constexpr int64_t kWidth = lane<V>::width;
      const T* data[kWidth];
      for (int64_t l = 0; l < kWidth; ++l) data[l] = rows.data + lanes.row(l) * rows.row_stride;
      int64_t i = 0;
      for (; i + kWidth <= size; i += kWidth) {
        V square[kWidth];
        for (int64_t l = 0; l < kWidth; ++l) square[l] = lane<V>::load(data[l] + i);
        lane<V>::transpose(square);
        for (int64_t l = 0; l < kWidth; ++l) tile_[i + l] = square[l];
      }
      for (; i < size; ++i)
        for (int64_t l = 0; l < kWidth; ++l) tile_[i][l] = data[l][i];
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

  void scatter(const Head<T>& head, int64_t sample, int64_t k, V value, T* out) const {
    put(out + sample * head.rows * head.classes, head.classes, k, value);
  }
  V gather(const Head<T>& head, int64_t sample, int64_t k, const T* in) const {
    V value{};
    for (int64_t l = 0; l < count; ++l) value[l] = in[(sample * head.rows + first + l) * head.classes + k];
    return value;
  }

  void put(T* out, int64_t row_size, int64_t i, Total value) const {
    for (int64_t l = 0; l < count; ++l) out[(first + l) * row_size + i] = value[l];
  }
  void put_run(T* out, int64_t size, const Total* values, Total factor) const {
    constexpr int64_t kWidth = lane<V>::width;
    int64_t i = 0;
    for (; i + kWidth <= size; i += kWidth) {
      V square[kWidth];
      for (int64_t l = 0; l < kWidth; ++l) square[l] = values[i + l] * factor;
      lane<V>::transpose(square);
      for (int64_t l = 0; l < count; ++l) lane<V>::store(out + (first + l) * size + i, square[l]);
    }
    for (; i < size; ++i) put(out, size, i, values[i] * factor);
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
  void subtract_at_target(V* by_class, const int64_t* target, V value) const {
    for (int64_t l = 0; l < lane<V>::width; ++l) by_class[target[row(l)]][l] -= value[l];
  }
  static void over_samples(const V* values, int64_t size, Total* out) {
    for (int64_t i = 0; i < size; ++i) out[i] = values[i];
  }
  static Total max_over_samples(V value) { return value; }
  static V mean(V value, typename lane<V>::Mask) { return value; }
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
  static Total total(V value) { return value; }
  double sum_over_rows(Total value) const {
    double sum = 0;
    for (int64_t l = 0; l < count; ++l) sum += value[l];
    return sum;
  }
};

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
