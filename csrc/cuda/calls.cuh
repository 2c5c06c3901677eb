// The calls of kernels.h, for one floating type: included by one file each.
#pragma once

#include <stdexcept>
#include <string>

#include "launch.cuh"

namespace hetnet {
namespace cuda {

inline void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(error));
}

inline void require(bool condition, const char* otherwise) {
  if (!condition) throw std::runtime_error(otherwise);
}

// The number of a thread's first class is an int.
constexpr int64_t kMostClasses = (int64_t{1} << 31) - kClasses * kMostThreads;

template <class T>
Workspace<T> workspace(const Kernels<T>& kernels, const Head<T>& head, bool backward) {
  int most_shared_bytes = 0;
  check(cudaDeviceGetAttribute(&most_shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, kernels.device));
  require(head.classes < kMostClasses, "loc: too many classes for the CUDA kernels");
  const Workspace<T> workspace(Launcher<T>::drawn(head), backward, kernels.limits, most_shared_bytes);
  require(workspace.plan.shared_bytes <= most_shared_bytes,
          head.cholesky ? "sampling: too many classes for a Cholesky draw in this GPU's shared memory"
                        : "cov_factor: too many factors for this GPU's shared memory");
  return workspace;
}

// Calls run(launcher) on the device, and reports what went wrong.
template <class T, class Run>
void launch_on(const Kernels<T>& kernels, const DeviceHead<T>& head, bool backward, T* memory, const Run& run) {
  check(cudaSetDevice(kernels.device));  // torch's guard has set it, but for torch's copy of the runtime
  run(Launcher<T>(head, workspace(kernels, head.head, backward), static_cast<cudaStream_t>(kernels.stream), memory));
  check(cudaGetLastError());
}

// Elements that the classes and weights of a loss's rows take.
template <class T>
int64_t row_weights_size(int64_t rows) {
  return (rows * static_cast<int64_t>(sizeof(int64_t) / sizeof(T) + 1) + 3) / 4 * 4;
}

template <class T>
int64_t Kernels<T>::memory_size(const Head<T>& head, bool backward) const {
  return workspace(*this, head, backward).size;
}

template <class T>
int64_t Kernels<T>::loss_memory_size(const Head<T>& head, bool with_grad) const {
  return row_weights_size<T>(head.rows) + memory_size(head, with_grad);
}

template <class T>
void Kernels<T>::sample_logits(const DeviceHead<T>& head, T* memory, T* out) const {
  launch_on(*this, head, false, memory, [&](const Launcher<T>& launcher) { launcher.sample_logits(out); });
}

template <class T>
void Kernels<T>::sample_logits_backward(const DeviceHead<T>& head, T* memory, const T* grad_out,
                                        const HeadGradient<T>& grad) const {
  launch_on(*this, head, true, memory,
            [&](const Launcher<T>& launcher) { launcher.sample_logits_backward(grad_out, grad); });
}

template <class T>
void Kernels<T>::log_probs(const DeviceHead<T>& head, T* memory, T* log_probs, T* probs) const {
  launch_on(*this, head, false, memory, [&](const Launcher<T>& launcher) { launcher.log_probs(log_probs, probs); });
}

template <class T>
void Kernels<T>::log_probs_backward(const DeviceHead<T>& head, T* memory, const T* grad_out, const T* log_probs,
                                    const T* probs, const HeadGradient<T>& grad) const {
  launch_on(*this, head, true, memory,
            [&](const Launcher<T>& launcher) { launcher.log_probs_backward(grad_out, log_probs, probs, grad); });
}

template <class T>
void Kernels<T>::nll(const DeviceHead<T>& head, T* memory, const LossArguments<T>& arguments, T* row_loss, T* loss,
                     const HeadGradient<T>* grad) const {
  int64_t* const row_class = reinterpret_cast<int64_t*>(memory);
  T* const row_weight = memory + head.head.rows * static_cast<int64_t>(sizeof(int64_t) / sizeof(T));
  launch_on(*this, head, grad != nullptr, memory + row_weights_size<T>(head.head.rows),
            [&](const Launcher<T>& launcher) {
              const NllTarget<T> target = launcher.row_weights(arguments, row_class, row_weight);
              if (grad)
                launcher.nll(target, row_loss, *grad);
              else
                launcher.nll(target, row_loss);
              if (arguments.sums) launcher.sum_loss(row_loss, row_weight, arguments.mean, loss);
            });
}

template <class T>
void Kernels<T>::statistics(const DeviceHead<T>& head, T* memory, T* mean, T* variance, T* entropy) const {
  launch_on(*this, head, false, memory,
            [&](const Launcher<T>& launcher) { launcher.statistics(mean, variance, entropy); });
}

}  // namespace cuda
}  // namespace hetnet
