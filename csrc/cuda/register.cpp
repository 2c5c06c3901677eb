// The operators on CUDA tensors. Nothing here waits for the device, which reads temperature, seed and
// targets itself.
#include <dlfcn.h>

#include "../head_tensors.h"
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

// What a call needs: the device made current, its stream, and memory to work in.
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

  T* work() const { return memory.mutable_data_ptr<T>(); }
};

void refuse_cholesky(bool cholesky) {
  STD_TORCH_CHECK(!cholesky, "hetnet_ext: sampling through the Cholesky factor has no CUDA kernel");
}

Tensor sample_logits(const Tensor& loc, const Tensor& scale, const Optional& cov_factor, const Optional& factor_scale,
                     const Tensor& temperature, const Tensor& seed, int64_t num_samples, bool cholesky) {
  refuse_cholesky(cholesky);
  const HeadTensors in(loc, scale, cov_factor, factor_scale, temperature, seed, num_samples);
  const Tensor out = in.empty({num_samples, in.rows(), in.classes()});
  in.dispatch([&](auto t) {
    using T = decltype(t);
    const Call<T> call(in, false);
    call.kernels.sample_logits(call.head, call.work(), out.mutable_data_ptr<T>());
  });
  return out;
}

Gradients sample_logits_backward(const Tensor& grad_out, const Tensor& loc, const Tensor& scale,
                                 const Optional& cov_factor, const Optional& factor_scale, const Tensor& temperature,
                                 const Tensor& seed, int64_t num_samples) {
  const HeadTensors in(loc, scale, cov_factor, factor_scale, temperature, seed, num_samples);
  in.check_samples(grad_out, "grad_out");
  const Tensor upstream = torch::stable::contiguous(grad_out);
  const GradientTensors grad(in);
  in.dispatch([&](auto t) {
    using T = decltype(t);
    const Call<T> call(in, true);
    call.kernels.sample_logits_backward(call.head, call.work(), upstream.const_data_ptr<T>(), grad.pointers<T>());
  });
  return grad.tuple();
}

std::tuple<Tensor, Tensor> mc_log_probs(const Tensor& loc, const Tensor& scale, const Optional& cov_factor,
                                        const Optional& factor_scale, const Tensor& temperature, const Tensor& seed,
                                        int64_t num_samples) {
  const HeadTensors in(loc, scale, cov_factor, factor_scale, temperature, seed, num_samples);
  const Tensor log_probs = in.empty({in.rows(), in.classes()}), probs = in.empty({in.rows(), in.classes()});
  in.dispatch([&](auto t) {
    using T = decltype(t);
    const Call<T> call(in, false);
    call.kernels.log_probs(call.head, call.work(), log_probs.mutable_data_ptr<T>(), probs.mutable_data_ptr<T>());
  });
  return {log_probs, probs};
}

Gradients mc_log_probs_backward(const Tensor& grad_out, const Tensor& log_probs, const Tensor& probs, const Tensor& loc,
                                const Tensor& scale, const Optional& cov_factor, const Optional& factor_scale,
                                const Tensor& temperature, const Tensor& seed, int64_t num_samples) {
  const HeadTensors in(loc, scale, cov_factor, factor_scale, temperature, seed, num_samples);
  in.check_rows(grad_out, "grad_out");
  in.check_rows(log_probs, "log_probs");
  in.check_rows(probs, "probs");
  const Tensor upstream = torch::stable::contiguous(grad_out);
  const Tensor log_p = torch::stable::contiguous(log_probs), p = torch::stable::contiguous(probs);
  const GradientTensors grad(in);
  in.dispatch([&](auto t) {
    using T = decltype(t);
    const Call<T> call(in, true);
    call.kernels.log_probs_backward(call.head, call.work(), upstream.const_data_ptr<T>(), log_p.const_data_ptr<T>(),
                                    p.const_data_ptr<T>(), grad.pointers<T>());
  });
  return grad.tuple();
}

std::tuple<Tensor, Tensor, Tensor> mc_statistics(const Tensor& loc, const Tensor& scale, const Optional& cov_factor,
                                                 const Optional& factor_scale, const Tensor& temperature,
                                                 const Tensor& seed, int64_t num_samples, bool cholesky) {
  refuse_cholesky(cholesky);
  const HeadTensors in(loc, scale, cov_factor, factor_scale, temperature, seed, num_samples);
  const Tensor mean = in.empty({in.rows(), in.classes()});
  const Tensor variance = in.empty({in.rows(), in.classes()});
  const Tensor entropy = in.empty({in.rows()});
  in.dispatch([&](auto t) {
    using T = decltype(t);
    const Call<T> call(in, false);
    call.kernels.statistics(call.head, call.work(), mean.mutable_data_ptr<T>(), variance.mutable_data_ptr<T>(),
                            entropy.mutable_data_ptr<T>());
  });
  return {mean, variance, entropy};
}

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
    const Call<T> call(in, with_grad, true);
    const LossArguments<T> arguments{targets.const_data_ptr<int64_t>(),
                                     class_weight ? class_weight->const_data_ptr<T>() : nullptr,
                                     upstream ? upstream->const_data_ptr<T>() : nullptr,
                                     ignore_index,
                                     reduction == kMean,
                                     reduction != kNone};
    const HeadGradient<T> pointers = grad ? grad->pointers<T>() : HeadGradient<T>{};
    call.kernels.nll(call.head, call.work(), arguments, row_loss.mutable_data_ptr<T>(), loss.mutable_data_ptr<T>(),
                     grad ? &pointers : nullptr);
  });
  return loss_and_gradients(in, loss, grad);
}

}  // namespace
}  // namespace cuda
}  // namespace hetnet

STABLE_TORCH_LIBRARY_IMPL(hetnet_ext, CUDA, m) {
  m.impl("sample_logits", TORCH_BOX(&hetnet::cuda::sample_logits));
  m.impl("sample_logits_backward", TORCH_BOX(&hetnet::cuda::sample_logits_backward));
  m.impl("mc_log_probs", TORCH_BOX(&hetnet::cuda::mc_log_probs));
  m.impl("mc_log_probs_backward", TORCH_BOX(&hetnet::cuda::mc_log_probs_backward));
  m.impl("mc_statistics", TORCH_BOX(&hetnet::cuda::mc_statistics));
  m.impl("mc_nll_loss", TORCH_BOX(&hetnet::cuda::mc_nll_loss));
}
