// Arrays of scratch memory.
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
  ~Buffer() { free_scratch(data_, bytes_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  E* get() const { return data_; }
  E& operator[](int64_t i) const { return data_[i]; }

 private:
  std::size_t bytes_;
  E* data_;
};

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
