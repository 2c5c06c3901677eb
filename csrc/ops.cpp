// The torch operators: schemas, checks that keep memory safe, and the call of the kernels.
//
// Users see `hetnet_ext.functional`, which checks arguments with errors of its own; these
// checks are for whoever calls `torch.ops.hetnet_ext` directly.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <limits>
#include <vector>

#include "cpu/dispatch.h"
#include "cpu/parallel.h"
#include "operators.h"

namespace hetnet {

int64_t num_threads() { return static_cast<int64_t>(torch::stable::get_num_threads()); }

void parallel_ranges(int64_t count, int64_t grain, void (*fn)(const void*, int64_t, int64_t), const void* context) {
  torch::stable::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) { fn(context, begin, end); });
}

namespace {

// The head with what is read from its tensors now.
template <class T>
Head<T> cpu_head(const HeadTensors& in) {
  Head<T> head = in.head<T>();
  const T t = *in.temperature.const_data_ptr<T>();
  head.temperature = t > 0 ? t : std::numeric_limits<T>::quiet_NaN();
  head.seed = static_cast<uint64_t>(in.seed.const_data_ptr<int64_t>()[0]);
  return head;
}

// The backend of operators.h.
struct CpuBackend {
  template <class T>
  struct Call {
    Head<T> head;

    Call(const HeadTensors& in, bool /*backward*/) : head(cpu_head<T>(in)) {}

    template <class F>
    void run(const F& f) const {
      f(kernels<T>(), head);
    }
  };
};

using CpuOperators = Operators<CpuBackend>;

// The negative log-likelihood, and with `with_grad` the gradients of its sum over the rows. Each
// row counts by the weight of its class, over their sum for the mean; `row_grad`, if given,
// multiplies that.
LossAndGradients mc_nll_loss(const Tensor& loc, const Tensor& scale, const Optional& cov_factor,
                             const Optional& factor_scale, const Tensor& temperature, const Tensor& seed,
                             int64_t num_samples, const Tensor& target, const Optional& weight,
                             const Optional& row_grad, int64_t ignore_index, int64_t reduction, bool with_grad) {
  const HeadTensors in(loc, scale, cov_factor, factor_scale, temperature, seed, num_samples);
  in.check_loss(target, weight, row_grad);
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
    kernels<T>().nll(cpu_head<T>(in), {classes.data(), row_weight.data()}, row_loss.mutable_data_ptr<T>(),
                     grad ? &pointers : nullptr);
    if (reduction == kNone) return;
    double sum = reduction == kMean && total == 0 ? std::numeric_limits<double>::quiet_NaN() : 0;
    for (int64_t b = 0; b < in.rows(); ++b) sum += row_loss.const_data_ptr<T>()[b];
    *loss.mutable_data_ptr<T>() = static_cast<T>(sum);
  });
  return loss_and_gradients(in, loss, grad);
}

// The CUDA version that the library was built with, 0 for none.
int64_t cuda_version() {
#if defined(HETNET_CUDA_VERSION)
  return HETNET_CUDA_VERSION;
#else
  return 0;
#endif
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
  m.def("cuda_version() -> int");
  m.def("cpu_capability() -> int");
  m.def("best_cpu_capability() -> int");
}

STABLE_TORCH_LIBRARY_IMPL(hetnet_ext, CPU, m) {
  m.impl("sample_logits", TORCH_BOX(&hetnet::CpuOperators::sample_logits));
  m.impl("sample_logits_backward", TORCH_BOX(&hetnet::CpuOperators::sample_logits_backward));
  m.impl("mc_log_probs", TORCH_BOX(&hetnet::CpuOperators::mc_log_probs));
  m.impl("mc_log_probs_backward", TORCH_BOX(&hetnet::CpuOperators::mc_log_probs_backward));
  m.impl("mc_statistics", TORCH_BOX(&hetnet::CpuOperators::mc_statistics));
  m.impl("mc_nll_loss", TORCH_BOX(&hetnet::mc_nll_loss));
}

STABLE_TORCH_LIBRARY_IMPL(hetnet_ext, CompositeExplicitAutograd, m) {
  m.impl("cuda_version", TORCH_BOX(&hetnet::cuda_version));
  m.impl("cpu_capability", TORCH_BOX(&hetnet::cpu_capability));
  m.impl("best_cpu_capability", TORCH_BOX(&hetnet::best_cpu_capability));
}

// The module itself is empty: importing it loads the library, which registers the operators.
PyMODINIT_FUNC PyInit__C(void) {
  static PyModuleDef definition = {
      PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
  return PyModule_Create(&definition);
}
