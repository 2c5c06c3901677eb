// The torch operators: schemas, checks that keep memory safe, and the call of the kernels.
//
// Users see `hetnet_ext.functional`, which checks arguments with errors of its own; these
// checks are for whoever calls `torch.ops.hetnet_ext` directly.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
// torch's headers have unused parameters of their own.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#pragma GCC diagnostic pop

#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "cpu/dispatch.h"
#include "cpu/parallel.h"

namespace hetnet {

int64_t num_threads() { return static_cast<int64_t>(torch::stable::get_num_threads()); }

void parallel_ranges(int64_t count, int64_t grain, void (*fn)(const void*, int64_t, int64_t), const void* context) {
  torch::stable::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) { fn(context, begin, end); });
}

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Optional = std::optional<Tensor>;

// Contiguous but for the stride of the first dimension, which may be anything (0 for an
// expanded tensor). Copies only where it must.
Tensor with_contiguous_rows(const Tensor& x) {
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
  bool cholesky = false;

  HeadTensors(const Tensor& loc_, const Tensor& scale_, const Optional& cov_factor_, const Optional& factor_scale_,
              const Tensor& temperature_, const Tensor& seed_, int64_t num_samples_)
      : loc(with_contiguous_rows(loc_)),
        scale(with_contiguous_rows(scale_)),
        temperature(temperature_),
        seed(torch::stable::contiguous(seed_)),
        num_samples(num_samples_) {
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
    STD_TORCH_CHECK(seed.scalar_type() == ScalarType::Long && seed.dim() == 1 && seed.size(0) == 2 && seed.is_cpu(),
                    "seed: expected an int64 tensor of shape (2,) on the device of loc");
    STD_TORCH_CHECK(num_samples >= 1 && num_samples <= INT32_MAX, "num_samples: expected 1 to 2^31 - 1");
  }

  void check(const Tensor& x, const char* name, bool shape) const {
    STD_TORCH_CHECK(shape, name, ": shape does not match the other tensors");
    STD_TORCH_CHECK(x.scalar_type() == loc.scalar_type() && x.is_cpu() && loc.is_cpu(), name,
                    ": expected the dtype and device of loc");
  }

  int64_t rows() const { return loc.size(0); }
  int64_t classes() const { return loc.size(1); }
  int64_t factors() const { return cov_factor ? cov_factor->size(cov_factor->dim() - 1) : 0; }
  bool shared_factor() const { return cov_factor && cov_factor->dim() == 2; }

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
    const T t = *temperature.const_data_ptr<T>();
    h.temperature = t > 0 ? t : std::numeric_limits<T>::quiet_NaN();
    h.seed = static_cast<uint64_t>(seed.const_data_ptr<int64_t>()[0]);
    h.row_offset = seed.const_data_ptr<int64_t>()[1];
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

Tensor sample_logits(const Tensor& loc, const Tensor& scale, const Optional& cov_factor, const Optional& factor_scale,
                     const Tensor& temperature, const Tensor& seed, int64_t num_samples, bool cholesky) {
  HeadTensors in(loc, scale, cov_factor, factor_scale, temperature, seed, num_samples);
  in.cholesky = cholesky;
  const Tensor out = in.empty({num_samples, in.rows(), in.classes()});
  in.dispatch([&](auto t) {
    using T = decltype(t);
    kernels<T>().sample_logits(in.head<T>(), out.mutable_data_ptr<T>());
  });
  return out;
}

std::tuple<Tensor, Tensor> mc_log_probs(const Tensor& loc, const Tensor& scale, const Optional& cov_factor,
                                        const Optional& factor_scale, const Tensor& temperature, const Tensor& seed,
                                        int64_t num_samples) {
  const HeadTensors in(loc, scale, cov_factor, factor_scale, temperature, seed, num_samples);
  const Tensor log_probs = in.empty({in.rows(), in.classes()}), probs = in.empty({in.rows(), in.classes()});
  in.dispatch([&](auto t) {
    using T = decltype(t);
    kernels<T>().log_probs(in.head<T>(), log_probs.mutable_data_ptr<T>(), probs.mutable_data_ptr<T>());
  });
  return {log_probs, probs};
}

std::tuple<Tensor, Tensor, Tensor> mc_statistics(const Tensor& loc, const Tensor& scale, const Optional& cov_factor,
                                                 const Optional& factor_scale, const Tensor& temperature,
                                                 const Tensor& seed, int64_t num_samples, bool cholesky) {
  HeadTensors in(loc, scale, cov_factor, factor_scale, temperature, seed, num_samples);
  in.cholesky = cholesky;
  const Tensor mean = in.empty({in.rows(), in.classes()});
  const Tensor variance = in.empty({in.rows(), in.classes()});
  const Tensor entropy = in.empty({in.rows()});
  in.dispatch([&](auto t) {
    using T = decltype(t);
    kernels<T>().statistics(in.head<T>(), mean.mutable_data_ptr<T>(), variance.mutable_data_ptr<T>(),
                            entropy.mutable_data_ptr<T>());
  });
  return {mean, variance, entropy};
}

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

Gradients sample_logits_backward(const Tensor& grad_out, const Tensor& loc, const Tensor& scale,
                                 const Optional& cov_factor, const Optional& factor_scale, const Tensor& temperature,
                                 const Tensor& seed, int64_t num_samples) {
  const HeadTensors in(loc, scale, cov_factor, factor_scale, temperature, seed, num_samples);
  in.check(grad_out, "grad_out",
           grad_out.dim() == 3 && grad_out.size(0) == num_samples && grad_out.size(1) == in.rows() &&
               grad_out.size(2) == in.classes());
  const Tensor upstream = torch::stable::contiguous(grad_out);
  const GradientTensors grad(in);
  in.dispatch([&](auto t) {
    using T = decltype(t);
    kernels<T>().sample_logits_backward(in.head<T>(), upstream.const_data_ptr<T>(), grad.pointers<T>());
  });
  return grad.tuple();
}

Gradients mc_log_probs_backward(const Tensor& grad_out, const Tensor& log_probs, const Tensor& probs, const Tensor& loc,
                                const Tensor& scale, const Optional& cov_factor, const Optional& factor_scale,
                                const Tensor& temperature, const Tensor& seed, int64_t num_samples) {
  const HeadTensors in(loc, scale, cov_factor, factor_scale, temperature, seed, num_samples);
  const auto matches = [&](const Tensor& x) {
    return x.dim() == 2 && x.size(0) == in.rows() && x.size(1) == in.classes();
  };
  in.check(grad_out, "grad_out", matches(grad_out));
  in.check(log_probs, "log_probs", matches(log_probs));
  in.check(probs, "probs", matches(probs));
  const Tensor upstream = torch::stable::contiguous(grad_out);
  const Tensor log_p = torch::stable::contiguous(log_probs), p = torch::stable::contiguous(probs);
  const GradientTensors grad(in);
  in.dispatch([&](auto t) {
    using T = decltype(t);
    kernels<T>().log_probs_backward(in.head<T>(), upstream.const_data_ptr<T>(), log_p.const_data_ptr<T>(),
                                    p.const_data_ptr<T>(), grad.pointers<T>());
  });
  return grad.tuple();
}

enum Reduction : int64_t { kNone = 0, kMean = 1, kSum = 2 };  // as torch numbers them

// The negative log-likelihood, and with `with_grad` the gradients of its sum over the rows. Each
// row counts by the weight of its class, over their sum for the mean; `row_grad`, if given,
// multiplies that.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> mc_nll_loss(
    const Tensor& loc, const Tensor& scale, const Optional& cov_factor, const Optional& factor_scale,
    const Tensor& temperature, const Tensor& seed, int64_t num_samples, const Tensor& target, const Optional& weight,
    const Optional& row_grad, int64_t ignore_index, int64_t reduction, bool with_grad) {
  const HeadTensors in(loc, scale, cov_factor, factor_scale, temperature, seed, num_samples);
  STD_TORCH_CHECK(
      target.scalar_type() == ScalarType::Long && target.dim() == 1 && target.size(0) == in.rows() && target.is_cpu(),
      "target: expected an int64 tensor of shape (rows,) on the device of loc");
  if (weight) in.check(*weight, "weight", weight->dim() == 1 && weight->size(0) == in.classes());
  if (row_grad) in.check(*row_grad, "row_grad", row_grad->dim() == 1 && row_grad->size(0) == in.rows());
  const Tensor targets = torch::stable::contiguous(target);

  const Tensor row_loss = in.empty({in.rows()});
  const Tensor loss = reduction == kNone ? row_loss : in.empty({});
  std::optional<GradientTensors> grad;
  if (with_grad) grad.emplace(in);

  in.dispatch([&](auto t) {
    using T = decltype(t);
    const Optional class_weight = weight ? Optional(torch::stable::contiguous(*weight)) : Optional();
    const Optional upstream = row_grad ? Optional(torch::stable::contiguous(*row_grad)) : Optional();
    std::vector<int64_t> classes(static_cast<std::size_t>(in.rows()));
    std::vector<T> row_weight(static_cast<std::size_t>(in.rows()));
    double total = 0;
    for (std::size_t b = 0; b < classes.size(); ++b) {
      const int64_t y = targets.const_data_ptr<int64_t>()[b];
      if (y == ignore_index) continue;  // class 0, weight 0
      STD_TORCH_CHECK(y >= 0 && y < in.classes(), "target: expected classes 0 to ", in.classes() - 1,
                      ", or ignore_index, ", ignore_index, ", got ", y);
      classes[b] = y;
      row_weight[b] = class_weight ? class_weight->const_data_ptr<T>()[y] : T(1);
      total += row_weight[b];
    }
    for (std::size_t b = 0; b < classes.size(); ++b) {
      if (reduction == kMean && total != 0) row_weight[b] = static_cast<T>(row_weight[b] / total);
      if (upstream) row_weight[b] *= upstream->const_data_ptr<T>()[b];
    }

    const HeadGradient<T> pointers = grad ? grad->pointers<T>() : HeadGradient<T>{};
    kernels<T>().nll(in.head<T>(), {classes.data(), row_weight.data()}, row_loss.mutable_data_ptr<T>(),
                     grad ? &pointers : nullptr);
    if (reduction == kNone) return;
    double sum = reduction == kMean && total == 0 ? std::numeric_limits<double>::quiet_NaN() : 0;
    for (int64_t b = 0; b < in.rows(); ++b) sum += row_loss.const_data_ptr<T>()[b];
    *loss.mutable_data_ptr<T>() = static_cast<T>(sum);
  });
  if (grad) return {loss, grad->loc, grad->scale, grad->cov_factor, grad->factor_scale, grad->temperature};
  const auto none = [&] { return in.empty({0}); };
  return {loss, none(), none(), none(), none(), none()};
}

int64_t cpu_capability() { return static_cast<int64_t>(capability()); }
int64_t best_cpu_capability() { return static_cast<int64_t>(supported_capability()); }

}  // namespace
}  // namespace hetnet

#define HETNET_HEAD                                                                                 \
  "Tensor loc, Tensor scale, Tensor? cov_factor, Tensor? factor_scale, Tensor temperature, Tensor " \
  "seed, int num_samples"

STABLE_TORCH_LIBRARY(hetnet_ext, m) {
  m.def("sample_logits(" HETNET_HEAD ", bool cholesky) -> Tensor");
  m.def("sample_logits_backward(Tensor grad_out, " HETNET_HEAD ") -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def("mc_log_probs(" HETNET_HEAD ") -> (Tensor log_probs, Tensor probs)");
  m.def("mc_log_probs_backward(Tensor grad_out, Tensor log_probs, Tensor probs, " HETNET_HEAD
        ") -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def("mc_statistics(" HETNET_HEAD ", bool cholesky) -> (Tensor mean, Tensor variance, Tensor expected_entropy)");
  m.def("mc_nll_loss(" HETNET_HEAD
        ", Tensor target, Tensor? weight, Tensor? row_grad, int ignore_index, int reduction, bool with_grad) -> "
        "(Tensor loss, Tensor loc, Tensor scale, Tensor cov_factor, Tensor factor_scale, Tensor temperature)");
  m.def("cpu_capability() -> int");
  m.def("best_cpu_capability() -> int");
}

STABLE_TORCH_LIBRARY_IMPL(hetnet_ext, CPU, m) {
  m.impl("sample_logits", TORCH_BOX(&hetnet::sample_logits));
  m.impl("sample_logits_backward", TORCH_BOX(&hetnet::sample_logits_backward));
  m.impl("mc_log_probs", TORCH_BOX(&hetnet::mc_log_probs));
  m.impl("mc_log_probs_backward", TORCH_BOX(&hetnet::mc_log_probs_backward));
  m.impl("mc_statistics", TORCH_BOX(&hetnet::mc_statistics));
  m.impl("mc_nll_loss", TORCH_BOX(&hetnet::mc_nll_loss));
}

STABLE_TORCH_LIBRARY_IMPL(hetnet_ext, CompositeExplicitAutograd, m) {
  m.impl("cpu_capability", TORCH_BOX(&hetnet::cpu_capability));
  m.impl("best_cpu_capability", TORCH_BOX(&hetnet::best_cpu_capability));
}

// The module itself is empty: importing it loads the library, which registers the operators.
PyMODINIT_FUNC PyInit__C(void) {
  static PyModuleDef definition = {
      PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
  return PyModule_Create(&definition);
}
