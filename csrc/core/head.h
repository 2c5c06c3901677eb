// The head's parameters as the kernels see them, and the table of kernels.
#pragma once

#include "lane.h"

namespace hetnet {

// One contiguous run of numbers for each row; a stride of 0 shares one run among all rows.
template <class T>
struct RowData {
  const T* data = nullptr;
  int64_t row_stride = 0;

  HETNET_INLINE explicit operator bool() const { return data != nullptr; }
};

// utility[s][b] = (loc[b] + scale[b] * eps + factor[b] (factor_scale[b] * eta)) / temperature
template <class T>
struct Head {
  int64_t rows, classes, factors, samples;
  // The classes may be a tile of those of a larger head: its classes from first_class on, a multiple
  // of 4. Rows of outputs are as long as all of its classes.
  int64_t first_class, all_classes;
  RowData<T> loc, scale;    // classes
  RowData<T> factor;        // classes x factors; without data where factors == 0
  bool shared_factor;       // one factor (of row stride 0) for all rows, with one gradient
  RowData<T> factor_scale;  // factors; without data: 1
  bool cholesky;            // draw all noise through the Cholesky factor of the covariance
  T temperature;            // NaN unless above 0
  uint64_t seed;
  // Positions of the rows in the data set, their places in the noise stream: of each row, or of the
  // first one, which the others follow.
  const int64_t* positions;
  bool position_of_each;

  HETNET_INLINE uint64_t stream_row(int64_t row) const {
    return position_of_each ? static_cast<uint64_t>(positions[row])
                            : static_cast<uint64_t>(positions[0]) + static_cast<uint64_t>(row);
  }
};

// Contiguous outputs of a backward kernel.
template <class T>
struct HeadGradient {
  T* loc;           // rows x classes
  T* scale;         // rows x classes
  T* factor;        // rows x classes x factors, or classes x factors where the factor is shared
  T* factor_scale;  // rows x factors, where the head has a factor scale
  T* temperature;   // 1
};

// What the negative log-likelihood is of.
template <class T>
struct NllTarget {
  const int64_t* classes;  // rows; of rows of weight 0 as well, below the number of classes
  const T* row_weight;     // rows: multiplies the row's loss
};

// The kernels of one instruction set. All tensors are contiguous.
template <class T>
struct Kernels {
  // out: samples x rows x classes
  void (*sample_logits)(const Head<T>& head, T* out);
  void (*sample_logits_backward)(const Head<T>& head, const T* grad_out, const HeadGradient<T>& grad);
  // log_probs, probs: rows x classes. The backward takes both: what rounding leaves of a
  // log-probability far from 0 does not give back its exponential.
  void (*log_probs)(const Head<T>& head, T* log_probs, T* probs);
  void (*log_probs_backward)(const Head<T>& head, const T* grad_out, const T* log_probs, const T* probs,
                             const HeadGradient<T>& grad);
  // loss: rows, weighted. With `grad`, the gradients of its sum as well, in the same pass.
  void (*nll)(const Head<T>& head, const NllTarget<T>& target, T* loss, const HeadGradient<T>* grad);
  // mean, variance: rows x classes; entropy: rows
  void (*statistics)(const Head<T>& head, T* mean, T* variance, T* entropy);
};

}  // namespace hetnet
