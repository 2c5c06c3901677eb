// The Cholesky factor of a row's covariance, which turns K normals into noise where the diagonal
// and the low-rank factor would take K + R.
#pragma once

#include "blocks.h"

namespace hetnet {
namespace HETNET_CPU_NAMESPACE {

// Writes the lower triangular L, classes x classes, with L L^T = diag(scale^2) + F F^T, and zeros
// above the diagonal. `scale(k)` and `factor(k, r)` give numbers of the lane type X.
//
// Where the covariance is singular, what is left of a pivot is rounding, and may be smaller than
// what is left of its column: such a column is zeros.
template <class X, class Scale, class Factor>
void cholesky(int64_t classes, int64_t factors, const Scale& scale, const Factor& factor, X* lower) {
  using L = lane<X>;
  using S = typename L::Scalar;
  const X rounding = splat<X>(4 * std::numeric_limits<S>::epsilon() * static_cast<S>(classes));
  for (int64_t i = 0; i < classes; ++i) {
    X* row = lower + i * classes;
    for (int64_t j = 0; j <= i; ++j) {
      const X* other = lower + j * classes;
      X covariance = i == j ? scale(i) * scale(i) : X{};
      for (int64_t r = 0; r < factors; ++r) covariance = L::fmadd(factor(i, r), factor(j, r), covariance);
      X rest = covariance;
      for (int64_t m = 0; m < j; ++m) rest = L::fmadd(-row[m], other[m], rest);
      if (i == j)
        row[j] = L::square_root(L::select(rest <= rounding * covariance, X{}, rest));
      else
        row[j] = L::select(other[j] == X{}, X{}, rest / other[j]);
    }
    for (int64_t j = i + 1; j < classes; ++j) row[j] = X{};
  }
}

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
