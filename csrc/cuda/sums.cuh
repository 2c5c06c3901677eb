// Sums over parts, slices and rows, in a fixed order, and the weights of a loss's rows.
#pragma once

#include "../core/center.h"
#include "../core/elementary.h"
#include "kernels.h"
#include "plan.cuh"

namespace hetnet {
namespace cuda {

// out[i] = the sum of parts[p * count + i], in the order of p.
template <class T>
__global__ void __launch_bounds__(kMostThreads)
    sum_parts_kernel(const T* __restrict__ parts, int64_t part_count, int64_t count, T* __restrict__ out) {
  const int64_t stride = int64_t{blockDim.x} * gridDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    T sum = T(0);
    for (int64_t p = 0; p < part_count; ++p) sum += parts[p * count + i];
    out[i] = sum;
  }
}

// The sum of number(0), ..., number(count - 1), by one block of kMostThreads threads, in double precision
// and for all of them.
template <class Number>
HETNET_DEVICE double block_sum(int64_t count, const Number& number) {
  __shared__ double sums[kMostThreads];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kMostThreads) sum += number(i);
  sums[threadIdx.x] = sum;
  for (int half = kMostThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  __syncthreads();
  sum = sums[0];
  __syncthreads();
  return sum;
}

template <class T>
__global__ void __launch_bounds__(kMostThreads)
    sum_kernel(const T* __restrict__ numbers, int64_t count, T* __restrict__ out) {
  const double sum = block_sum(count, [&](int64_t i) { return static_cast<double>(numbers[i]); });
  if (threadIdx.x == 0) *out = static_cast<T>(sum);
}

// Of `count` class probabilities, a mean over each slice of the samples and its logarithm, [slice][class of a row],
// those over all samples.
template <class T>
__global__ void __launch_bounds__(kMostThreads)
    combine_log_probs_kernel(Plan plan, int64_t samples, int64_t count, const T* __restrict__ slice_log_probs,
                             const T* __restrict__ slice_probs, T* __restrict__ log_probs, T* __restrict__ probs) {
  const int64_t stride = int64_t{blockDim.x} * gridDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    // each weighed with its samples
    T sum = T(0), largest = -kInfinity<T>;
    for (int s = 0; s < plan.slices; ++s) {
      sum += static_cast<T>(plan.samples_in(s, samples)) * slice_probs[s * count + i];
      largest = fmax(largest, slice_log_probs[s * count + i]);
    }
    const T prob = sum / static_cast<T>(samples);
    probs[i] = prob;
    log_probs[i] = log_or_limit(prob);
    if (!(prob < T(kSmallestProbability)) || largest == -kInfinity<T>) continue;
    sum = T(0);
    for (int s = 0; s < plan.slices; ++s)
      sum += static_cast<T>(plan.samples_in(s, samples)) * hetnet::exp(slice_log_probs[s * count + i] - largest);
    log_probs[i] = largest + hetnet::log(sum / static_cast<T>(samples));
  }
}

// The same of mean, variance, [slice][row][class], and mean entropy, [slice][row]. Chan, Golub and LeVeque, "Updating
// formulae and a pairwise algorithm for computing sample variances" (1979).
template <class T>
__global__ void __launch_bounds__(kMostThreads)
    combine_statistics_kernel(Plan plan, int64_t samples, int64_t rows, int64_t classes,
                              const T* __restrict__ slice_mean, const T* __restrict__ slice_variance,
                              const T* __restrict__ slice_entropy, T* __restrict__ mean, T* __restrict__ variance,
                              T* __restrict__ entropy) {
  const int64_t stride = int64_t{blockDim.x} * gridDim.x, count = rows * classes;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    double total = 0, center = 0, squares = 0, entropy_sum = 0;
    for (int s = 0; s < plan.slices; ++s) {
      const double more = static_cast<double>(plan.samples_in(s, samples)), both = total + more;
      const double distance = static_cast<double>(slice_mean[s * count + i]) - center;
      center += distance * (more / both);
      squares +=
          more * static_cast<double>(slice_variance[s * count + i]) + distance * distance * (total * more / both);
      if (i < rows) entropy_sum += more * static_cast<double>(slice_entropy[s * rows + i]);
      total = both;
    }
    mean[i] = static_cast<T>(center);
    variance[i] = static_cast<T>(squares / total);
    if (i < rows) entropy[i] = static_cast<T>(entropy_sum / total);
  }
}

// The class of each row and how much its loss counts: the weight of the class, over their sum for the mean.
// An ignored row gets class 0 and weight 0, a wrong class the weight NaN. By one block.
template <class T>
__global__ void __launch_bounds__(kMostThreads)
    row_weights_kernel(LossArguments<T> arguments, int64_t rows, int64_t classes, int64_t* __restrict__ row_class,
                       T* __restrict__ row_weight) {
  const auto is_class = [&](int64_t y) { return y >= 0 && y < classes; };
  const auto weight = [&](int64_t b) {
    const int64_t y = arguments.target[b];
    if (y == arguments.ignore_index) return T(0);
    if (!is_class(y)) return kNaN<T>;
    return arguments.class_weight ? arguments.class_weight[y] : T(1);
  };
  double total = 1;
  if (arguments.mean) total = block_sum(rows, [&](int64_t b) { return static_cast<double>(weight(b)); });
  for (int64_t b = threadIdx.x; b < rows; b += kMostThreads) {
    const int64_t y = arguments.target[b];
    row_class[b] = is_class(y) && y != arguments.ignore_index ? y : 0;
    T by = weight(b);
    if (arguments.mean && total != 0) by = static_cast<T>(static_cast<double>(by) / total);
    if (arguments.row_grad) by *= arguments.row_grad[b];
    row_weight[b] = by;
  }
}

// The sum of the rows' losses. The mean over rows none of which counts is NaN. By one block.
template <class T>
__global__ void __launch_bounds__(kMostThreads)
    sum_loss_kernel(const T* __restrict__ row_loss, const T* __restrict__ row_weight, int64_t rows, bool mean,
                    T* __restrict__ loss) {
  const double sum = block_sum(rows, [&](int64_t b) { return static_cast<double>(row_loss[b]); });
  const double weight = block_sum(rows, [&](int64_t b) { return static_cast<double>(row_weight[b]); });
  if (threadIdx.x == 0) *loss = mean && weight == 0 ? kNaN<T> : static_cast<T>(sum);
}

}  // namespace cuda
}  // namespace hetnet
