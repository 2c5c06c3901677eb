// Runs every CUDA kernel, emulated, on heads of each covariance and each kind of plan, for sanitizers to watch.
// What they compute is other tests' concern.
#include <cstdio>
#include <vector>

#include "cuemu.h"
#include "runtime.h"
// after the emulator of what it uses
#include "cuda/calls.cuh"

using namespace hetnet;

namespace {

enum Covariance { kDiagonal, kPerRow, kPerRowScaled, kShared, kSharedScaled, kCovariances };

// Exactly as large as it has to be, so that a step beyond its end is seen.
template <class T>
std::vector<T> numbers(int64_t count) {
  std::vector<T> out(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<T>(0.25 + static_cast<double>(i % 7) / 8);
  return out;
}

template <class T>
void run(Covariance covariance, int64_t rows, int64_t classes, int64_t factors, int64_t samples) {
  if (covariance == kDiagonal) factors = 0;
  const bool shared = covariance == kShared || covariance == kSharedScaled;
  const bool scaled = covariance == kPerRowScaled || covariance == kSharedScaled;
  std::vector<T> loc = numbers<T>(rows * classes);
  const std::vector<T> scale = loc, temperature{T(1.5)};
  // The last class, the target, is hopeless: it takes the paths of underflow.
  for (int64_t row = 0; row < rows; ++row) loc[static_cast<std::size_t>((row + 1) * classes - 1)] = T(-300);
  const std::vector<T> factor = numbers<T>((shared ? 1 : rows) * classes * factors);
  const std::vector<T> factor_scale = numbers<T>(scaled ? rows * factors : 0);
  const std::vector<int64_t> seed{7, 3};
  cuda::DeviceHead<T> head{{}, temperature.data(), seed.data()};
  head.head.rows = rows;
  head.head.classes = head.head.all_classes = classes;
  head.head.factors = factors;
  head.head.samples = samples;
  head.head.positions = seed.data() + 1;
  head.head.loc = {loc.data(), classes};
  head.head.scale = {scale.data(), classes};
  if (factors > 0) head.head.factor = {factor.data(), shared ? 0 : classes * factors};
  head.head.shared_factor = shared;
  if (scaled) head.head.factor_scale = {factor_scale.data(), factors};

  const cuda::Kernels<T> kernels{0, nullptr, {1 << 16, 1 << 16, 1 << 14, 3}};
  std::vector<T> forward = numbers<T>(kernels.memory_size(head.head, false));
  std::vector<T> backward = numbers<T>(kernels.memory_size(head.head, true));
  std::vector<T> samples_out = numbers<T>(samples * rows * classes), a = loc, b = loc, of_row = numbers<T>(rows);
  std::vector<T> g_loc = loc, g_scale = loc, g_factor = factor, g_factor_scale = factor_scale, one{T(0)};
  const HeadGradient<T> grad{g_loc.data(), g_scale.data(), g_factor.data(), g_factor_scale.data(), one.data()};

  kernels.sample_logits(head, forward.data(), samples_out.data());
  kernels.sample_logits_backward(head, backward.data(), samples_out.data(), grad);
  kernels.log_probs(head, forward.data(), a.data(), b.data());
  kernels.log_probs_backward(head, backward.data(), loc.data(), a.data(), b.data(), grad);
  kernels.statistics(head, forward.data(), a.data(), b.data(), of_row.data());
  if (classes <= 30) {  // whose squares are few enough for the small device
    cuda::DeviceHead<T> cholesky = head;
    cholesky.head.cholesky = true;
    std::vector<T> lower = numbers<T>(kernels.memory_size(cholesky.head, false));
    kernels.sample_logits(cholesky, lower.data(), samples_out.data());
    kernels.statistics(cholesky, lower.data(), a.data(), b.data(), of_row.data());
  }
  std::vector<int64_t> target(static_cast<std::size_t>(rows), classes - 1);
  target[0] = -100;
  const std::vector<T> weight = numbers<T>(classes);
  for (const bool with_grad : {false, true}) {
    std::vector<T> memory = numbers<T>(kernels.loss_memory_size(head.head, with_grad));
    const cuda::LossArguments<T> arguments{target.data(), weight.data(), of_row.data(), -100, with_grad, with_grad};
    kernels.nll(head, memory.data(), arguments, of_row.data(), one.data(), with_grad ? &grad : nullptr);
  }
}

template <class T>
void run_all() {
  for (int c = 0; c < kCovariances; ++c) {
    const Covariance covariance = static_cast<Covariance>(c);
    run<T>(covariance, 35, 3, 2, 2);
    run<T>(covariance, 2, 10, 5, 35);
    run<T>(covariance, 1, 10, 20, 520);  // slices and, on the small device, factors in global memory
    run<T>(covariance, 2, 70, 3, 9);
    run<T>(covariance, 1, 30, 30, 9);  // teams share sums of the factor's gradient
    run<T>(covariance, 1, 600, 2, 5);
    run<T>(covariance, 2, 1030, 1, 3);
  }
}

}  // namespace

// An argument leaves double precision out.
int main(int argc, char**) {
  for (const int kilobytes : {8, 227}) {
    cuemu::most_shared_bytes = kilobytes * 1024;
    run_all<float>();
    if (argc == 1) run_all<double>();
  }
  std::puts("all kernels ran");
}
