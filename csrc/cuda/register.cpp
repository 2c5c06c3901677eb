// The operators on CUDA tensors. Nothing here waits for the device, which reads temperature, seed and
// targets itself.
#include <dlfcn.h>

#include "../operators.h"
#include "kernels.h"

// torch's headers have unused parameters of their own.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <torch/csrc/stable/accelerator.h>
#pragma GCC diagnostic pop

namespace hetnet {
namespace cuda {
namespace {

// Torch's current stream. The library is not linked with torch's CUDA library, so that it can be loaded
// where torch has none; a CUDA tensor exists only where that library is loaded.
void* current_stream(int32_t device) {
  using GetStream = int32_t (*)(int32_t, void**);
  static const auto get_stream = [] {
    void* const library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    return library ? reinterpret_cast<GetStream>(dlsym(library, "aoti_torch_get_current_cuda_stream")) : nullptr;
  }();
  void* stream = nullptr;
  STD_TORCH_CHECK(get_stream != nullptr && get_stream(device, &stream) == 0, "hetnet_ext: no CUDA stream of torch's");
  return stream;
}

// The backend of operators.h: the device made current, its stream, and memory to work in.
struct Backend {
  template <class T>
  struct Call {
    torch::stable::accelerator::DeviceGuard guard;
    DeviceHead<T> head;
    Kernels<T> kernels;
    Tensor memory;

    Call(const HeadTensors& in, bool backward, bool loss = false)
        : guard(in.loc.get_device_index()),
          head{in.head<T>(), in.temperature.const_data_ptr<T>(), in.seed.const_data_ptr<int64_t>()},
          kernels{in.loc.get_device_index(), current_stream(in.loc.get_device_index())},
          memory(in.empty(
              {loss ? kernels.loss_memory_size(head.head, backward) : kernels.memory_size(head.head, backward)})) {}

    template <class F>
    void run(const F& f) const {
      f(kernels, head, memory.mutable_data_ptr<T>());
    }
  };
};

using CudaOperators = Operators<Backend>;

// As on the CPU, but for a target that is no class, which makes the loss NaN: to raise would wait for the device.
LossAndGradients mc_nll_loss(const Tensor& loc, const Tensor& scale, const Optional& cov_factor,
                             const Optional& factor_scale, const Tensor& temperature, const Tensor& seed,
                             int64_t num_samples, const Tensor& target, const Optional& weight,
                             const Optional& row_grad, int64_t ignore_index, int64_t reduction, bool with_grad) {
  const HeadTensors in(loc, scale, cov_factor, factor_scale, temperature, seed, num_samples);
  in.check_loss(target, weight, row_grad);
  const Tensor targets = torch::stable::contiguous(target);
  const Optional class_weight = weight ? Optional(torch::stable::contiguous(*weight)) : Optional();
  const Optional upstream = row_grad ? Optional(torch::stable::contiguous(*row_grad)) : Optional();
  const Tensor row_loss = in.empty({in.rows()});
  const Tensor loss = reduction == kNone ? row_loss : in.empty({});
  std::optional<GradientTensors> grad;
  if (with_grad) grad.emplace(in);
  in.dispatch([&](auto t) {
    using T = decltype(t);
    const LossArguments<T> arguments{targets.const_data_ptr<int64_t>(),
                                     class_weight ? class_weight->const_data_ptr<T>() : nullptr,
                                     upstream ? upstream->const_data_ptr<T>() : nullptr,
                                     ignore_index,
                                     reduction == kMean,
                                     reduction != kNone};
    const HeadGradient<T> pointers = grad ? grad->pointers<T>() : HeadGradient<T>{};
    Backend::Call<T>(in, with_grad, true).run([&](const auto& kernels, const auto&... head) {
      kernels.nll(head..., arguments, row_loss.mutable_data_ptr<T>(), loss.mutable_data_ptr<T>(),
                  grad ? &pointers : nullptr);
    });
  });
  return loss_and_gradients(in, loss, grad);
}

}  // namespace
}  // namespace cuda
}  // namespace hetnet

STABLE_TORCH_LIBRARY_IMPL(hetnet_ext, CUDA, m) {
  m.impl("sample_logits", TORCH_BOX(&hetnet::cuda::CudaOperators::sample_logits));
  m.impl("sample_logits_backward", TORCH_BOX(&hetnet::cuda::CudaOperators::sample_logits_backward));
  m.impl("mc_log_probs", TORCH_BOX(&hetnet::cuda::CudaOperators::mc_log_probs));
  m.impl("mc_log_probs_backward", TORCH_BOX(&hetnet::cuda::CudaOperators::mc_log_probs_backward));
  m.impl("mc_statistics", TORCH_BOX(&hetnet::cuda::CudaOperators::mc_statistics));
  m.impl("mc_nll_loss", TORCH_BOX(&hetnet::cuda::mc_nll_loss));
}
