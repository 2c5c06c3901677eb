// Arrays of scratch memory, and their way from and to those of the caller.
#pragma once

#include "scratch.h"
#include "vec.h"

namespace hetnet {
namespace HETNET_CPU_NAMESPACE {

// An array that is aligned for vectors.
template <class E>
class Buffer {
 public:
  explicit Buffer(int64_t size)
      : bytes_(sizeof(E) * static_cast<std::size_t>(size)), data_(static_cast<E*>(allocate_scratch(bytes_))) {}
  ~Buffer() {
    if (data_ != nullptr) free_scratch(data_, bytes_);
  }
  Buffer(Buffer&& other) : bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  E* get() const { return data_; }
  E& operator[](int64_t i) const { return data_[i]; }

 private:
  std::size_t bytes_;
  E* data_;
};

// Numbers [i][lane] to and from lane l's run of `size` numbers at out + l stride. There are `count`
// runs, or as many as lanes.
template <class V>
void scatter_lanes(const V* numbers, int64_t size, int64_t count, int64_t stride, typename lane<V>::Scalar* out,
                   V factor = splat<V>(1)) {
  constexpr int64_t kWidth = lane<V>::width;
  for (int64_t i = 0; i < size; i += kWidth) {
    V square[kWidth] = {};
    for (int64_t j = 0; j < kWidth && i + j < size; ++j) square[j] = numbers[i + j] * factor;
    lane<V>::transpose(square);
    for (int64_t l = 0; l < kWidth && l < count; ++l) lane<V>::store_part(out + l * stride + i, size - i, square[l]);
  }
}

// Lanes without a run of their own repeat the last one.
template <class V>
void gather_lanes(const typename lane<V>::Scalar* in, int64_t size, int64_t count, int64_t stride, V* numbers) {
  constexpr int64_t kWidth = lane<V>::width;
  for (int64_t i = 0; i < size; i += kWidth) {
    V square[kWidth];
    for (int64_t l = 0; l < kWidth; ++l)
      square[l] = lane<V>::load_part(in + (l < count ? l : count - 1) * stride + i, size - i);
    lane<V>::transpose(square);
    for (int64_t j = 0; j < kWidth && i + j < size; ++j) numbers[i + j] = square[j];
  }
}

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
