// The Cholesky factors of the rows' covariances, for draws that take them in place of scale and factor.
#pragma once

#include "../core/cholesky.h"
#include "plan.cuh"

namespace hetnet {
namespace cuda {

// The head whose draws are those of `head` through its Cholesky factors, a batch of rows at a time: its factor is
// the batch's, and it has no noise but the factors'.
template <class T>
Head<T> with_cholesky_factor(Head<T> head) {
  head.factors = head.classes;
  head.factor = {};
  head.shared_factor = false;
  head.factor_scale = {};
  return head;
}

// Writes those of a batch, a block for each row: `exact` in double precision, since what rounding leaves of a
// singular covariance is as small as its root, and to the batch's memory what that is in T. Those of a row whose
// scale or factor is not finite are NaN.
template <class T>
__global__ void __launch_bounds__(kMostThreads) cholesky_kernel(Head<T> head, Batch batch, double* __restrict__ exact) {
  const int64_t classes = head.classes, factors = head.factors, size = classes * classes;
  for (int64_t i = blockIdx.x; i < batch.rows; i += gridDim.x) {
    const int64_t row = batch.first_row + i;
    const auto scale = [&](int64_t k) { return static_cast<double>(head.scale.data[row * head.scale.row_stride + k]); };
    const auto factor = [&](int64_t k, int64_t r) {
      const double number = static_cast<double>(head.factor.data[row * head.factor.row_stride + k * factors + r]);
      if (!head.factor_scale) return number;
      return number * static_cast<double>(head.factor_scale.data[row * head.factor_scale.row_stride + r]);
    };
    double zero = 0;
    for (int64_t k = threadIdx.x; k < classes; k += blockDim.x) {
      zero += scale(k) * 0;
      for (int64_t r = 0; r < factors; ++r) zero += factor(k, r) * 0;
    }
    const bool finite = !__syncthreads_or(zero != 0);
    const CholeskyFactor<double, decltype(scale), decltype(factor)> lower(classes, factors, scale, factor,
                                                                          exact + i * size);
    for (int64_t j = 0; j < classes; ++j) {
      if (threadIdx.x == 0) lower.set_pivot(j);
      __syncthreads();
      for (int64_t k = j + 1 + threadIdx.x; k < classes; k += blockDim.x) lower.set_below_pivot(k, j);
      __syncthreads();
    }
    T* const out = static_cast<T*>(batch.lower) + i * size;
    for (int64_t n = threadIdx.x; n < size; n += blockDim.x) {
      const bool above = n % classes > n / classes;
      out[n] = !finite ? kNaN<T> : above ? T(0) : static_cast<T>(exact[i * size + n]);
    }
  }
}

}  // namespace cuda
}  // namespace hetnet
