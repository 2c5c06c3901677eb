// The operators' tensors, on either device: checks that keep memory safe, and the kernels' view of them.
#pragma once

// torch's headers have unused parameters of their own.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#pragma GCC diagnostic pop

#include <optional>
#include <tuple>

#include "core/head.h"

namespace hetnet {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Optional = std::optional<Tensor>;

// Contiguous but for the stride of the first dimension, which may be anything (0 for an
// expanded tensor). Copies only where it must.
inline Tensor with_contiguous_rows(const Tensor& x) {
  int64_t expected = 1;
  for (int64_t d = x.dim() - 1; d > 0; --d) {
    if (x.size(d) != 1 && x.stride(d) != expected) return torch::stable::contiguous(x);
    expected *= x.size(d);
  }
  return x;
}

// The head's tensors, checked, and kept alive while the kernels read them.
struct HeadTensors {
  Tensor loc, scale;
  Optional cov_factor, factor_scale;
  Tensor temperature, seed;
  int64_t num_samples;
  bool cholesky;

  HeadTensors(const Tensor& loc_, const Tensor& scale_, const Optional& cov_factor_, const Optional& factor_scale_,
              const Tensor& temperature_, const Tensor& seed_, int64_t num_samples_, bool cholesky_ = false)
      : loc(with_contiguous_rows(loc_)),
        scale(with_contiguous_rows(scale_)),
        temperature(temperature_),
        seed(torch::stable::contiguous(seed_)),
        num_samples(num_samples_),
        cholesky(cholesky_) {
    const auto dtype = loc.scalar_type();
    STD_TORCH_CHECK(dtype == ScalarType::Float || dtype == ScalarType::Double, "loc: expected float32 or float64");
    STD_TORCH_CHECK(loc.dim() == 2 && loc.size(1) >= 1, "loc: expected shape (rows, classes)");
    check(scale, "scale", scale.dim() == 2 && scale.size(0) == rows() && scale.size(1) == classes());
    if (cov_factor_) {
      const Tensor& f = *cov_factor_;
      const bool per_row = f.dim() == 3 && f.size(0) == rows() && f.size(1) == classes();
      const bool shared = f.dim() == 2 && f.size(0) == classes();
      check(f, "cov_factor", (per_row || shared) && f.size(f.dim() - 1) >= 1);
      cov_factor = shared ? torch::stable::contiguous(f) : with_contiguous_rows(f);
    }
    if (factor_scale_) {
      STD_TORCH_CHECK(cov_factor.has_value(), "factor_scale: expected a cov_factor with it");
      const Tensor& f = *factor_scale_;
      check(f, "factor_scale", f.dim() == 2 && f.size(0) == rows() && f.size(1) == factors());
      factor_scale = with_contiguous_rows(f);
    }
    check(temperature, "temperature", temperature.dim() == 0);
    STD_TORCH_CHECK(seed.scalar_type() == ScalarType::Long && seed.dim() == 1 &&
                        (seed.size(0) == 2 || seed.size(0) == 1 + rows()) && same_device(seed),
                    "seed: expected an int64 tensor of shape (2,) or (1 + rows,) on the device of loc");
    STD_TORCH_CHECK(num_samples >= 1 && num_samples <= INT32_MAX, "num_samples: expected 1 to 2^31 - 1");
  }

  void check(const Tensor& x, const char* name, bool shape) const {
    STD_TORCH_CHECK(shape, name, ": shape does not match the other tensors");
    STD_TORCH_CHECK(x.scalar_type() == loc.scalar_type() && same_device(x), name,
                    ": expected the dtype and device of loc");
  }
  bool same_device(const Tensor& x) const {
    return x.is_cuda() == loc.is_cuda() && x.get_device_index() == loc.get_device_index();
  }

  void check_rows(const Tensor& x, const char* name) const {
    check(x, name, x.dim() == 2 && x.size(0) == rows() && x.size(1) == classes());
  }
  void check_samples(const Tensor& x, const char* name) const {
    check(x, name, x.dim() == 3 && x.size(0) == num_samples && x.size(1) == rows() && x.size(2) == classes());
  }
  void check_loss(const Tensor& target, const Optional& weight, const Optional& row_grad) const {
    STD_TORCH_CHECK(target.scalar_type() == ScalarType::Long && target.dim() == 1 && target.size(0) == rows() &&
                        same_device(target),
                    "target: expected an int64 tensor of shape (rows,) on the device of loc");
    if (weight) check(*weight, "weight", weight->dim() == 1 && weight->size(0) == classes());
    if (row_grad) check(*row_grad, "row_grad", row_grad->dim() == 1 && row_grad->size(0) == rows());
  }

  int64_t rows() const { return loc.size(0); }
  int64_t classes() const { return loc.size(1); }
  int64_t factors() const { return cov_factor ? cov_factor->size(cov_factor->dim() - 1) : 0; }
  bool shared_factor() const { return cov_factor && cov_factor->dim() == 2; }

  // All but what only the kernels' device may read: temperature and seed.
  template <class T>
  Head<T> head() const {
    const auto rows_of = [](const Tensor& x) { return RowData<T>{x.const_data_ptr<T>(), x.stride(0)}; };
    Head<T> h{};
    h.rows = rows();
    h.classes = h.all_classes = classes();
    h.factors = factors();
    h.samples = num_samples;
    h.loc = rows_of(loc);
    h.scale = rows_of(scale);
    if (cov_factor) h.factor = shared_factor() ? RowData<T>{cov_factor->const_data_ptr<T>(), 0} : rows_of(*cov_factor);
    h.shared_factor = shared_factor();
    h.cholesky = cholesky;
    if (factor_scale) h.factor_scale = rows_of(*factor_scale);
    h.positions = seed.const_data_ptr<int64_t>() + 1;
    h.position_of_each = seed.size(0) != 2;  // with one row, it is the same
    return h;
  }

  Tensor empty(std::initializer_list<int64_t> sizes) const { return torch::stable::new_empty(loc, sizes); }

  // Calls launch(T{}) with the floating type of the tensors.
  template <class F>
  void dispatch(const F& launch) const {
    if (loc.scalar_type() == ScalarType::Float)
      launch(float{});
    else
      launch(double{});
  }
};

// Gradients of loc, scale, cov_factor, factor_scale and temperature; that of an absent
// tensor has no elements.
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

struct GradientTensors {
  Tensor loc, scale, cov_factor, factor_scale, temperature;

  explicit GradientTensors(const HeadTensors& in)
      : loc(in.empty({in.rows(), in.classes()})),
        scale(in.empty({in.rows(), in.classes()})),
        cov_factor(!in.cov_factor       ? in.empty({0})
                   : in.shared_factor() ? in.empty({in.classes(), in.factors()})
                                        : in.empty({in.rows(), in.classes(), in.factors()})),
        factor_scale(in.factor_scale ? in.empty({in.rows(), in.factors()}) : in.empty({0})),
        temperature(in.empty({})) {}

  template <class T>
  HeadGradient<T> pointers() const {
    return {loc.mutable_data_ptr<T>(), scale.mutable_data_ptr<T>(), cov_factor.mutable_data_ptr<T>(),
            factor_scale.mutable_data_ptr<T>(), temperature.mutable_data_ptr<T>()};
  }
  Gradients tuple() const { return {loc, scale, cov_factor, factor_scale, temperature}; }
};

enum Reduction : int64_t { kNone = 0, kMean = 1, kSum = 2 };  // as torch numbers them

using LossAndGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// Without gradients, tensors without elements in their place.
inline LossAndGradients loss_and_gradients(const HeadTensors& in, const Tensor& loss,
                                           const std::optional<GradientTensors>& grad) {
  if (grad) return {loss, grad->loc, grad->scale, grad->cov_factor, grad->factor_scale, grad->temperature};
  const auto none = [&] { return in.empty({0}); };
  return {loss, none(), none(), none(), none(), none()};
}

}  // namespace hetnet
