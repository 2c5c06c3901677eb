// Times the stages of the one-pass loss by themselves, on one thread: what stages.py compiles and calls.
#include <algorithm>
#include <chrono>
#include <vector>

#include "cpu/standard_headers.h"

#define HETNET_CPU_NAMESPACE benchmark
#include "cpu/kernels.h"
#include "cpu/scratch.cpp"

namespace hetnet {

int64_t num_threads() { return 1; }
void parallel_ranges(int64_t count, int64_t, void (*fn)(const void*, int64_t, int64_t), const void* context) {
  fn(context, 0, count);
}

namespace benchmark {
namespace {

// Seconds of the fastest of several calls.
template <class F>
double seconds(const F& call) {
  double best = 1e9;
  for (int i = 0; i < 15; ++i) {
    const auto start = std::chrono::steady_clock::now();
    call();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

template <class Lanes>
void time_stages(const Head<float>& head, const NllTarget<float>& target, const HeadGradient<float>& grad,
                 double* out) {
  std::vector<float> loss(static_cast<std::size_t>(head.rows));
  out[0] = seconds([&] { nll<float, Lanes>(head, target, loss.data(), &grad); });

  const int64_t groups = group_count<Lanes>(head), step = Lanes::samples_per_draw(head);
  Sampler<float, Lanes> sampler(head);
  const auto for_draws = [&](const auto& f) {
    for (int64_t g = 0; g < groups; ++g)
      for (int64_t s = 0; s < head.samples; s += step) f(s);
  };
  const auto bind = [&] {
    for (int64_t g = 0; g < groups; ++g) sampler.bind(Lanes(head, g));
  };
  bind();
  out[1] = seconds([&] { for_draws([&](int64_t s) { sampler.draw(s); }); });

  Probabilities<float, Lanes> probabilities(head);
  const Draw<float, Lanes> draw = sampler.draw(0);
  out[2] = seconds([&] { for_draws([&](int64_t) { probabilities.of(draw); }); });

  GradientSums<float, Lanes> sums(head);
  sums.clear();
  out[3] = seconds(
      [&] { for_draws([&](int64_t) { sums.add(draw, probabilities.exponential(), probabilities.softmax().max); }); });
}

}  // namespace
}  // namespace benchmark
}  // namespace hetnet

using namespace hetnet;
using namespace hetnet::benchmark;

// Seconds to draw so many normals for classes along no lanes: 200 dimensions of `vectors` vectors of
// samples. Returns how many normals these are.
extern "C" int64_t draw_noise(int64_t vectors, float* result) {
  constexpr int64_t kDimensions = 200;
  const PhiloxKeys keys(1);
  FloatVec normals[kDimensions];
  FloatVec sum{};
  for (int64_t i = 0; i < vectors; ++i) {
    const StreamPosition<FloatWords, uint32_t, uint32_t> position{FloatWords::sequence_low(static_cast<uint64_t>(i)), 1,
                                                                  0};
    fill_normals<float>(keys, position, kDimensions, normals);
    sum += normals[i % kDimensions];
  }
  *result = sum[0];
  return kDimensions * vectors * lane<FloatVec>::width;
}

// Seconds of the whole loss with its gradients, and of all draws, softmaxes and gradient sums in it.
extern "C" void time_stages(int64_t rows, int64_t classes, int64_t factors, int64_t samples, bool shared, double* out) {
  const auto numbers = [](int64_t size, float spread) {
    std::vector<float> x(static_cast<std::size_t>(size));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = spread * static_cast<float>(i % 17) / 17;
    return x;
  };
  const std::vector<float> loc = numbers(rows * classes, 4), scale = numbers(rows * classes, 1);
  const std::vector<float> factor = numbers((shared ? 1 : rows) * classes * factors, 0.5f);
  const std::vector<float> factor_scale = numbers(rows * factors, 1), weight = numbers(rows, 1);
  const std::vector<int64_t> target(static_cast<std::size_t>(rows), 1);
  Head<float> head{};
  head.rows = rows;
  head.classes = head.all_classes = classes;
  head.factors = factors;
  head.samples = samples;
  head.loc = {loc.data(), classes};
  head.scale = {scale.data(), classes};
  head.factor = {factor.data(), shared ? 0 : classes * factors};
  head.shared_factor = shared;
  if (shared) head.factor_scale = {factor_scale.data(), factors};
  head.temperature = 1;

  std::vector<float> loc_grad = loc, scale_grad = scale, factor_grad = factor, factor_scale_grad = factor_scale;
  float temperature_grad;
  const HeadGradient<float> grad{loc_grad.data(), scale_grad.data(), factor_grad.data(), factor_scale_grad.data(),
                                 &temperature_grad};
  choose_lanes(head, [&](auto along) {
    benchmark::time_stages<typename decltype(along)::type>(head, {target.data(), weight.data()}, grad, out);
  });
}
