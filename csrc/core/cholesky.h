// The Cholesky factor of a row's covariance, which turns K normals into noise where the diagonal
// and the low-rank factor would take K + R.
#pragma once

#include "lane.h"

namespace hetnet {

// The lower triangular L, classes x classes, with L L^T = diag(scale^2) + F F^T, number by number: each
// takes the columns before its own, and the pivot of its own. `scale(k)` and `factor(k, r)` give
// numbers of the lane type X.
//
// Where the covariance is singular, what is left of a pivot is rounding, and may be smaller than
// what is left of its column: such a column is zeros.
template <class X, class Scale, class Factor>
class CholeskyFactor {
  using L = lane<X>;
  using S = typename L::Scalar;

 public:
  HETNET_INLINE CholeskyFactor(int64_t classes, int64_t factors, const Scale& scale, const Factor& factor, X* lower)
      : classes_(classes), factors_(factors), scale_(scale), factor_(factor), lower_(lower) {}

  HETNET_INLINE void set_pivot(int64_t j) const {
    const X covariance = low_rank(j, j, scale_(j) * scale_(j)), rest = without_columns(j, j, covariance);
    const X rounding = splat<X>(4 * kEpsilon<S> * static_cast<S>(classes_)) * covariance;
    at(j, j) = L::square_root(L::select(rest <= rounding, X{}, rest));
  }

  // For i > j.
  HETNET_INLINE void set_below_pivot(int64_t i, int64_t j) const {
    const X pivot = at(j, j), rest = without_columns(i, j, low_rank(i, j, X{}));
    at(i, j) = L::select(pivot == X{}, X{}, rest / pivot);
  }

 private:
  HETNET_INLINE X& at(int64_t i, int64_t j) const { return lower_[i * classes_ + j]; }

  HETNET_INLINE X low_rank(int64_t i, int64_t j, X sum) const {
    for (int64_t r = 0; r < factors_; ++r) sum = L::fmadd(factor_(i, r), factor_(j, r), sum);
    return sum;
  }
  HETNET_INLINE X without_columns(int64_t i, int64_t j, X covariance) const {
    for (int64_t m = 0; m < j; ++m) covariance = L::fmadd(-at(i, m), at(j, m), covariance);
    return covariance;
  }

  const int64_t classes_, factors_;
  const Scale& scale_;
  const Factor& factor_;
  X* const lower_;
};

}  // namespace hetnet
