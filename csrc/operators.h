// The operators that a CPU and a GPU have alike: checks, results, and the call of a backend's kernels.
#pragma once

#include "head_tensors.h"

namespace hetnet {

// Backend::Call<T>(in, backward).run(f) calls f(kernels, head...), where the kernels are those of head.h or
// cuda/kernels.h, and the head what they ask for first.
template <class Backend>
struct Operators {
  static Tensor sample_logits(const Tensor& loc, const Tensor& scale, const Optional& cov_factor,
                              const Optional& factor_scale, const Tensor& temperature, const Tensor& seed,
                              int64_t num_samples, bool cholesky) {
    const HeadTensors in(loc, scale, cov_factor, factor_scale, temperature, seed, num_samples, cholesky);
    const Tensor out = in.empty({num_samples, in.rows(), in.classes()});
    in.dispatch([&](auto t) {
      using T = decltype(t);
      typename Backend::template Call<T>(in, false).run(
          [&](const auto& kernels, const auto&... head) { kernels.sample_logits(head..., out.mutable_data_ptr<T>()); });
    });
    return out;
  }

  static std::tuple<Tensor, Tensor> mc_log_probs(const Tensor& loc, const Tensor& scale, const Optional& cov_factor,
                                                 const Optional& factor_scale, const Tensor& temperature,
                                                 const Tensor& seed, int64_t num_samples) {
    const HeadTensors in(loc, scale, cov_factor, factor_scale, temperature, seed, num_samples);
    const Tensor log_probs = in.empty({in.rows(), in.classes()}), probs = in.empty({in.rows(), in.classes()});
    in.dispatch([&](auto t) {
      using T = decltype(t);
      typename Backend::template Call<T>(in, false).run([&](const auto& kernels, const auto&... head) {
        kernels.log_probs(head..., log_probs.mutable_data_ptr<T>(), probs.mutable_data_ptr<T>());
      });
    });
    return {log_probs, probs};
  }

  static std::tuple<Tensor, Tensor, Tensor> mc_statistics(const Tensor& loc, const Tensor& scale,
                                                          const Optional& cov_factor, const Optional& factor_scale,
                                                          const Tensor& temperature, const Tensor& seed,
                                                          int64_t num_samples, bool cholesky) {
    const HeadTensors in(loc, scale, cov_factor, factor_scale, temperature, seed, num_samples, cholesky);
    const Tensor mean = in.empty({in.rows(), in.classes()});
    const Tensor variance = in.empty({in.rows(), in.classes()});
    const Tensor entropy = in.empty({in.rows()});
    in.dispatch([&](auto t) {
      using T = decltype(t);
      typename Backend::template Call<T>(in, false).run([&](const auto& kernels, const auto&... head) {
        kernels.statistics(head..., mean.mutable_data_ptr<T>(), variance.mutable_data_ptr<T>(),
                           entropy.mutable_data_ptr<T>());
      });
    });
    return {mean, variance, entropy};
  }

  static Gradients sample_logits_backward(const Tensor& grad_out, const Tensor& loc, const Tensor& scale,
                                          const Optional& cov_factor, const Optional& factor_scale,
                                          const Tensor& temperature, const Tensor& seed, int64_t num_samples) {
    const HeadTensors in(loc, scale, cov_factor, factor_scale, temperature, seed, num_samples);
    in.check_samples(grad_out, "grad_out");
    const Tensor upstream = torch::stable::contiguous(grad_out);
    const GradientTensors grad(in);
    in.dispatch([&](auto t) {
      using T = decltype(t);
      typename Backend::template Call<T>(in, true).run([&](const auto& kernels, const auto&... head) {
        kernels.sample_logits_backward(head..., upstream.const_data_ptr<T>(), grad.pointers<T>());
      });
    });
    return grad.tuple();
  }

  static Gradients mc_log_probs_backward(const Tensor& grad_out, const Tensor& log_probs, const Tensor& probs,
                                         const Tensor& loc, const Tensor& scale, const Optional& cov_factor,
                                         const Optional& factor_scale, const Tensor& temperature, const Tensor& seed,
                                         int64_t num_samples) {
    const HeadTensors in(loc, scale, cov_factor, factor_scale, temperature, seed, num_samples);
    in.check_rows(grad_out, "grad_out");
    in.check_rows(log_probs, "log_probs");
    in.check_rows(probs, "probs");
    const Tensor upstream = torch::stable::contiguous(grad_out);
    const Tensor log_p = torch::stable::contiguous(log_probs), p = torch::stable::contiguous(probs);
    const GradientTensors grad(in);
    in.dispatch([&](auto t) {
      using T = decltype(t);
      typename Backend::template Call<T>(in, true).run([&](const auto& kernels, const auto&... head) {
        kernels.log_probs_backward(head..., upstream.const_data_ptr<T>(), log_p.const_data_ptr<T>(),
                                   p.const_data_ptr<T>(), grad.pointers<T>());
      });
    });
    return grad.tuple();
  }
};

}  // namespace hetnet
