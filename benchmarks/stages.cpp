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

constexpr int kRounds = 25;

// Lowers `best` to the seconds that a call takes.
template <class F>
void time_once(const F& call, double& best) {
  const auto start = std::chrono::steady_clock::now();
  call();
  best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

// Draws normals and does nothing else. Returns how many.
int64_t draw_noise() {
  constexpr int64_t kDimensions = 200, kVectors = 500;
  const PhiloxKeys keys(1);
  FloatVec normals[kDimensions];
  for (int64_t i = 0; i < kVectors; ++i) {
    const StreamPosition<FloatWords, uint32_t, uint32_t> position{FloatWords::sequence_low(static_cast<uint64_t>(i)), 1,
                                                                  0};
    fill_normals<float>(keys, position, kDimensions, normals);
    asm volatile("" : : "r"(normals) : "memory");  // as if somebody read them
  }
  return kDimensions * kVectors * lane<FloatVec>::width;
}

// Stages take turns, so that all of them see the processor at its best.
template <class Lanes>
void time_stages(const Head<float>& head, const NllTarget<float>& target, const HeadGradient<float>& grad,
                 double* out) {
  const int64_t groups = group_count<Lanes>(head), step = Lanes::samples_per_draw(head);
  std::vector<float> loss(static_cast<std::size_t>(head.rows));
  Sampler<float, Lanes> sampler(head);
  sampler.bind(Lanes(head, 0));
  Probabilities<float, Lanes> probabilities(head);
  GradientSums<float, Lanes> sums(head);
  sums.clear();
  const Draw<float, Lanes> draw = sampler.draw(0);
  const std::vector<FloatVec> weight(Lanes::most_slices, splat<FloatVec>(1));
  const auto for_draws = [&](const auto& f) {
    for (int64_t g = 0; g < groups; ++g)
      for (int64_t s = 0; s < head.samples; s += step) f(s);
  };

  for (int round = 0; round < kRounds; ++round) {
    time_once([&] { nll<float, Lanes>(head, target, loss.data(), &grad); }, out[0]);
    time_once([&] { for_draws([&](int64_t s) { sampler.draw(s); }); }, out[1]);
    time_once([&] { for_draws([&](int64_t) { probabilities.of(draw); }); }, out[2]);
    time_once(
        [&] {
          for_draws([&](int64_t) {
            sums.add(draw, probabilities.exponential(), weight.data(), probabilities.softmax().max);
          });
        },
        out[3]);
    time_once(draw_noise, out[4]);
  }
  const double normals =
      static_cast<double>(head.rows * head.samples) * static_cast<double>(head.classes + head.factors);
  out[4] *= normals / static_cast<double>(draw_noise());
}

}  // namespace
}  // namespace benchmark
}  // namespace hetnet

using namespace hetnet;
using namespace hetnet::benchmark;

extern "C" double seconds_a_normal() {
  double best = 1;
  for (int round = 0; round < kRounds; ++round) time_once(draw_noise, best);
  return best / static_cast<double>(draw_noise());
}

// Seconds of the whole loss with its gradients, and of all draws, softmaxes, gradient sums and normals
// in it.
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
  std::fill(out, out + 5, 1e9);
  choose_lanes(head, [&](auto along) {
    benchmark::time_stages<typename decltype(along)::type>(head, {target.data(), weight.data()}, grad, out);
  });
}
