// Binds the CUDA kernels to NumPy: run on the CPU by the emulator, a fiber for each thread.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "cuemu.h"
#include "runtime.h"
// after the emulator of what it uses
#include "cuda/calls.cuh"

namespace py = pybind11;

namespace {

using namespace hetnet;
using namespace hetnet::cuda;

template <class T>
using Array = py::array_t<T, py::array::c_style>;

// Exactly as large as the data: a sanitizer sees a step beyond its end.
template <class T>
std::vector<T> copy(const Array<T>& array) {
  return std::vector<T>(array.data(), array.data() + array.size());
}

// A head, and the calls that register.cpp makes of its tensors.
template <class T>
struct Emulated {
  std::vector<T> loc, scale, factor, factor_scale, temperature;
  std::vector<int64_t> seed;
  Head<T> head{};
  cuda::Kernels<T> kernels{0, nullptr};

  Emulated(const Array<T>& loc_, const Array<T>& scale_, const py::object& factor_, const py::object& factor_scale_,
           T temperature_, const Array<int64_t>& seed_, int64_t samples, bool cholesky)
      : loc(copy(loc_)), scale(copy(scale_)), temperature{temperature_}, seed(copy(seed_)) {
    head.rows = loc_.shape(0);
    head.classes = head.all_classes = loc_.shape(1);
    head.samples = samples;
    head.cholesky = cholesky;
    head.loc = {loc.data(), head.classes};
    head.scale = {scale.data(), head.classes};
    if (!factor_.is_none()) {
      const auto array = factor_.cast<Array<T>>();
      factor = copy(array);
      head.shared_factor = array.ndim() == 2;
      head.factors = array.shape(array.ndim() - 1);
      head.factor = {factor.data(), head.shared_factor ? 0 : head.classes * head.factors};
    }
    head.positions = seed.data() + 1;
    head.position_of_each = seed.size() != 2;
    if (!factor_scale_.is_none()) {
      factor_scale = copy(factor_scale_.cast<Array<T>>());
      head.factor_scale = {factor_scale.data(), head.factors};
    }
  }

  DeviceHead<T> device() const { return {head, temperature.data(), seed.data()}; }

  // As many elements as were asked for, which hold what must not show.
  static std::vector<T> memory(int64_t size) { return std::vector<T>(static_cast<std::size_t>(size), T(-12345)); }
  std::vector<T> memory(bool backward) const { return memory(kernels.memory_size(head, backward)); }

  Array<T> sample_logits() const {
    Array<T> out({head.samples, head.rows, head.classes});
    kernels.sample_logits(device(), memory(false).data(), out.mutable_data());
    return out;
  }
  py::tuple log_probs() const {
    Array<T> log_probs({head.rows, head.classes}), probs({head.rows, head.classes});
    kernels.log_probs(device(), memory(false).data(), log_probs.mutable_data(), probs.mutable_data());
    return py::make_tuple(log_probs, probs);
  }
  py::tuple statistics() const {
    Array<T> mean({head.rows, head.classes}), variance({head.rows, head.classes}), entropy(head.rows);
    kernels.statistics(device(), memory(false).data(), mean.mutable_data(), variance.mutable_data(),
                       entropy.mutable_data());
    return py::make_tuple(mean, variance, entropy);
  }

  // The gradients that run(gradient) stores.
  template <class Run>
  py::dict gradients(const Run& run) const {
    const auto like = [](const std::vector<T>& x) { return memory(static_cast<int64_t>(x.size())); };
    std::vector<T> g_loc = like(loc), g_scale = like(scale), g_factor = like(factor),
                   g_factor_scale = like(factor_scale), g_temperature = like(temperature);
    run(HeadGradient<T>{g_loc.data(), g_scale.data(), g_factor.data(), g_factor_scale.data(), g_temperature.data()});
    const auto array = [](const std::vector<T>& x) { return Array<T>(static_cast<py::ssize_t>(x.size()), x.data()); };
    py::dict out;
    out["loc"] = array(g_loc);
    out["scale"] = array(g_scale);
    out["cov_factor"] = array(g_factor);
    out["factor_scale"] = array(g_factor_scale);
    out["temperature"] = array(g_temperature);
    return out;
  }
  py::dict sample_logits_backward(const Array<T>& grad_out) const {
    const std::vector<T> g = copy(grad_out);
    return gradients([&](const HeadGradient<T>& grad) {
      kernels.sample_logits_backward(device(), memory(true).data(), g.data(), grad);
    });
  }
  py::dict log_probs_backward(const Array<T>& grad_out, const Array<T>& log_probs, const Array<T>& probs) const {
    const std::vector<T> g = copy(grad_out), lp = copy(log_probs), p = copy(probs);
    return gradients([&](const HeadGradient<T>& grad) {
      kernels.log_probs_backward(device(), memory(true).data(), g.data(), lp.data(), p.data(), grad);
    });
  }
  // `reduction` as torch numbers them. Returns the loss and the gradients, or None without `with_grad`.
  py::tuple nll(const Array<int64_t>& target_, const py::object& class_weight_, const py::object& row_grad_,
                int64_t ignore_index, int reduction, bool with_grad) const {
    const std::vector<int64_t> target = copy(target_);
    const auto optional = [](const py::object& x) { return x.is_none() ? std::vector<T>() : copy(x.cast<Array<T>>()); };
    const std::vector<T> class_weight = optional(class_weight_), row_grad = optional(row_grad_);
    const LossArguments<T> arguments{target.data(),
                                     class_weight_.is_none() ? nullptr : class_weight.data(),
                                     row_grad_.is_none() ? nullptr : row_grad.data(),
                                     ignore_index,
                                     reduction == 1,
                                     reduction != 0};
    std::vector<T> work = memory(kernels.loss_memory_size(head, with_grad));
    Array<T> row_loss(head.rows), loss(1);
    const auto run = [&](const HeadGradient<T>* grad) {
      kernels.nll(device(), work.data(), arguments, row_loss.mutable_data(), loss.mutable_data(), grad);
    };
    py::object grad = py::none();
    if (with_grad)
      grad = gradients([&](const HeadGradient<T>& g) { run(&g); });
    else
      run(nullptr);
    return py::make_tuple(reduction == 0 ? row_loss : loss, grad);
  }
};

template <class T>
void bind(py::module_& m, const char* name) {
  using E = Emulated<T>;
  py::class_<E>(m, name)
      .def(py::init<const Array<T>&, const Array<T>&, const py::object&, const py::object&, T, const Array<int64_t>&,
                    int64_t, bool>())
      // Memory to work in, in bytes, and blocks of rows.
      .def("limit", [](E& e, int64_t tile_bytes, int64_t factor_bytes, int64_t part_bytes,
                       int64_t parts) { e.kernels.limits = {tile_bytes, factor_bytes, part_bytes, parts}; })
      .def("sample_logits", &E::sample_logits)
      .def("sample_logits_backward", &E::sample_logits_backward)
      .def("log_probs", &E::log_probs)
      .def("log_probs_backward", &E::log_probs_backward)
      .def("statistics", &E::statistics)
      .def("nll", &E::nll);
}

}  // namespace

PYBIND11_MODULE(HETNET_TEST_MODULE, m) {
  bind<float>(m, "float32");
  bind<double>(m, "float64");
  // The softmax's own functions.
  m.def("exponential", py::vectorize([](float x) { return cuda::exponential(x); }));
  m.def("reciprocal", py::vectorize([](float x) { return cuda::reciprocal(x); }));
  // Shared memory that a block may have on the device.
  m.def("set_shared_bytes", [](int bytes) { cuemu::most_shared_bytes = bytes; });
  // See settings.h.
  m.def("set_order", &cuemu::set_order);
  m.def("set_fuzz", &cuemu::set_fuzz);
}
