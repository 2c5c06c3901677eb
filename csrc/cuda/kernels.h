// The CUDA kernels as the operators call them: compiled by nvcc, free of torch.
#pragma once

#include "../core/head.h"

namespace hetnet {
namespace cuda {

// A head whose temperature and seed only the device may read.
template <class T>
struct DeviceHead {
  Head<T> head;
  const T* temperature;
  const int64_t* seed;
};

// What a loss is of, in device memory, as the caller has it.
template <class T>
struct LossArguments {
  const int64_t* target;
  const T* class_weight;  // or null
  const T* row_grad;      // or null: multiplies a row's weight
  int64_t ignore_index;
  bool mean;  // over the weights
  bool sums;  // over the rows: the loss is one number
};

// How much memory the kernels may work in. Where it would not do, they take the rows in several batches, or
// fewer blocks at a time.
struct Limits {
  int64_t tile_bytes = int64_t{32} << 20;    // what tiles of classes tell each other
  int64_t factor_bytes = int64_t{32} << 20;  // blocks' factors that do not fit into shared memory
  int64_t part_bytes = int64_t{16} << 20;    // sums over parts of the rows, of a shared factor's gradient
  int64_t parts = 256;                       // enough for every processor of a large GPU
};

// Calls on a stream of the current device. They return at once; a launch that fails throws
// std::runtime_error. `memory` is device memory of as many elements as `memory_size` says, aligned to 16
// bytes, which the kernels work in.
template <class T>
struct Kernels {
  int device;
  void* stream;
  Limits limits{};

  int64_t memory_size(const Head<T>& head, bool backward) const;
  // For `nll`, which needs some for each row besides.
  int64_t loss_memory_size(const Head<T>& head, bool with_grad) const;

  void sample_logits(const DeviceHead<T>& head, T* memory, T* out) const;
  void sample_logits_backward(const DeviceHead<T>& head, T* memory, const T* grad_out,
                              const HeadGradient<T>& grad) const;
  void log_probs(const DeviceHead<T>& head, T* memory, T* log_probs, T* probs) const;
  void log_probs_backward(const DeviceHead<T>& head, T* memory, const T* grad_out, const T* log_probs, const T* probs,
                          const HeadGradient<T>& grad) const;
  // A target that is no class of the head makes its row, and a sum over the rows, NaN.
  void nll(const DeviceHead<T>& head, T* memory, const LossArguments<T>& arguments, T* row_loss, T* loss,
           const HeadGradient<T>* grad) const;
  void statistics(const DeviceHead<T>& head, T* memory, T* mean, T* variance, T* entropy) const;
};

}  // namespace cuda
}  // namespace hetnet
