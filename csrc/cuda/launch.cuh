// Chooses a plan for a head and launches its kernels, free of torch.
#pragma once

#include "cholesky.cuh"
#include "gradient_kernels.cuh"
#include "sums.cuh"

namespace hetnet {
namespace cuda {

#if defined(__CUDACC__)

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 blocks, int threads, int64_t shared_bytes, cudaStream_t stream,
            const Arguments&... arguments) {
  if (shared_bytes > 48 * 1024)  // more than that must be asked for
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  kernel<<<blocks, threads, static_cast<std::size_t>(shared_bytes), stream>>>(static_cast<Parameters>(arguments)...);
}

#else

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 blocks, int threads, int64_t shared_bytes, cudaStream_t,
            const Arguments&... arguments) {
  cuemu::launch(kernel, blocks, dim3(static_cast<unsigned>(threads)), static_cast<std::size_t>(shared_bytes),
                arguments...);
}

#endif

// Samples of a thread's step: as many as make a vector load of their noise.
template <class T>
constexpr int kSamples = 16 / sizeof(T);

constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;

// The memory that kernels work in, in elements.
template <class T>
struct Workspace {
  Plan plan;
  int64_t batch_rows;  // rows of a launch
  int64_t parts;       // most blocks of a launch, for each tile and slice
  // Where each begins. Numbers of tiles are not needed where there is one.
  int64_t numbers, slice_results, tile_numbers, tile_rows, tile_scales, temperature, factor_parts, factors, lower,
      exact_lower, size;

  Workspace(const Head<T>& head, bool backward, const Limits& limits, int64_t most_shared_bytes)
      : plan(make_plan(head, kSamples<T>, backward, most_shared_bytes)), batch_rows(head.rows) {
    const int64_t tiles = plan.tiles;
    const int64_t row_size = head.samples * (3 + 2 * tiles) + tiles * (1 + head.factors);
    if (tiles > 1) limit(batch_rows, limits.tile_bytes / (row_size * static_cast<int64_t>(sizeof(T))));
    const int64_t slice_size = plan.slices > 1 ? plan.slices * (2 * head.classes + 1) : 0;
    if (plan.slices > 1) limit(batch_rows, limits.tile_bytes / (slice_size * static_cast<int64_t>(sizeof(T))));
    const int64_t lower_size = head.cholesky ? head.classes * head.classes : 0;
    constexpr int64_t kExact = sizeof(double) / sizeof(T);
    if (head.cholesky)
      limit(batch_rows, limits.factor_bytes / (lower_size * (1 + kExact) * static_cast<int64_t>(sizeof(T))));
    const int64_t in_tiles = tiles > 1 ? batch_rows : 0;
    numbers = 0;
    slice_results = numbers + 3 * in_tiles * head.samples;
    tile_numbers = slice_results + batch_rows * slice_size;
    tile_rows = tile_numbers + 2 * in_tiles * tiles * head.samples;
    tile_scales = tile_rows + in_tiles * tiles;
    temperature = tile_scales + in_tiles * tiles * head.factors;
    factor_parts = temperature + (backward ? head.rows : 0);

    const int64_t groups = plan.groups(batch_rows);
    parts = groups < kMostBlocks ? groups : kMostBlocks;
    int64_t part_size = 0, block_size = 0;
    if (backward && head.shared_factor) {
      part_size = head.classes * head.factors;
      limit(parts, limits.parts);
      limit(parts, limits.part_bytes / (part_size * static_cast<int64_t>(sizeof(T))));
    }
    if (!plan.factor_in_shared) {
      block_size = tiles * plan.slices * Layout<T>(plan, head.factors, backward).factors_size;
      limit(parts, limits.factor_bytes / (block_size * static_cast<int64_t>(sizeof(T))));
    }
    factors = (factor_parts + parts * part_size + 3) / 4 * 4;  // read four at a time
    exact_lower = (factors + parts * block_size + 3) / 4 * 4;  // for numbers of double precision
    lower = exact_lower + kExact * batch_rows * lower_size;
    size = lower + batch_rows * lower_size;
  }

 private:
  static void limit(int64_t& count, int64_t most) {
    if (most < 1) most = 1;
    if (most < count) count = most;
  }
};

// Launches the kernels of a head. With several tiles of classes, a first launch finds each sample's
// softmax normalizer and a second one draws the same noise again, for batches of rows.
template <class T>
class Launcher {
 public:
  // `memory` holds the elements of the workspace, which is that of the drawn head.
  Launcher(const DeviceHead<T>& head, const Workspace<T>& workspace, cudaStream_t stream, T* memory)
      : given_(head.head),
        device_head_{drawn(head.head), head.temperature, head.seed},
        head_(device_head_.head),
        work_(workspace),
        stream_(stream),
        memory_(memory) {}

  // The head whose samples the kernels draw.
  static Head<T> drawn(const Head<T>& head) { return head.cholesky ? with_cholesky_factor(head) : head; }

  void sample_logits(T* out) const {
    for_each_batch([&](const Batch& batch) {
      start_slices(work_.plan.slices,
                   head_.cholesky ? sample_logits_kernel<T, kSamples<T>, kCholesky>
                                  : sample_logits_kernel<T, kSamples<T>, kForward>,
                   batch, out);
    });
  }

  void log_probs(T* log_probs, T* probs) const {
    const Plan& plan = work_.plan;
    for_each_batch([&](const Batch& batch) {
      const int64_t count = batch.rows * head_.classes, first = batch.first_row * head_.classes;
      T* const log_p = plan.slices > 1 ? memory_ + work_.slice_results : log_probs + first;
      T* const p = plan.slices > 1 ? log_p + plan.slices * count : probs + first;
      if (plan.tiles > 1) {
        normalize<kForward>(batch, nullptr);
        start(log_probs_kernel<T, kSamples<T>, true>, batch, numbers(), log_p, p);
      } else {
        start_slices(plan.slices, log_probs_kernel<T, kSamples<T>, false>, batch, numbers(), log_p, p);
      }
      if (plan.slices > 1)
        launch(combine_log_probs_kernel<T>, blocks(count), kMostThreads, 0, stream_, plan, head_.samples, count, log_p,
               p, log_probs + first, probs + first);
    });
  }

  void statistics(T* mean, T* variance, T* entropy) const {
    if (head_.cholesky)
      statistics<kCholesky>(mean, variance, entropy);
    else
      statistics<kForward>(mean, variance, entropy);
  }

  // `row_class` and `row_weight` have room for each row. Returns what the loss is of.
  NllTarget<T> row_weights(const LossArguments<T>& arguments, int64_t* row_class, T* row_weight) const {
    launch(row_weights_kernel<T>, 1, kMostThreads, 0, stream_, arguments, head_.rows, head_.classes, row_class,
           row_weight);
    return {row_class, row_weight};
  }

  void sum_loss(const T* row_loss, const T* row_weight, bool mean, T* loss) const {
    launch(sum_loss_kernel<T>, 1, kMostThreads, 0, stream_, row_loss, row_weight, head_.rows, mean, loss);
  }

  void nll(const NllTarget<T>& target, T* loss) const {
    for_each_batch([&](const Batch& batch) {
      const DeviceGradient<T> none{};
      if (work_.plan.tiles == 1)
        return start(nll_kernel<T, kSamples<T>, false, false, false>, batch, numbers(), target, loss, none);
      normalize<kForward>(batch, target.classes);
      start(nll_kernel<T, kSamples<T>, false, true, false>, batch, numbers(), target, loss, none);
    });
  }

  void nll(const NllTarget<T>& target, T* loss, const HeadGradient<T>& grad) const {
    backward(grad, [&](const Batch& batch, const DeviceGradient<T>& out) {
      if (work_.plan.tiles == 1)
        return start(
            shares() ? nll_kernel<T, kSamples<T>, true, false, true> : nll_kernel<T, kSamples<T>, true, false, false>,
            batch, numbers(), target, loss, out);
      normalize<kForward>(batch, target.classes);
      start(shares() ? nll_kernel<T, kSamples<T>, true, true, true> : nll_kernel<T, kSamples<T>, true, true, false>,
            batch, numbers(), target, loss, out);
    });
  }

  void sample_logits_backward(const T* grad_out, const HeadGradient<T>& grad) const {
    backward(grad, [&](const Batch& batch, const DeviceGradient<T>& out) {
      start(shares() ? sample_logits_backward_kernel<T, kSamples<T>, true>
                     : sample_logits_backward_kernel<T, kSamples<T>, false>,
            batch, grad_out, out);
    });
  }

  void log_probs_backward(const T* grad_out, const T* log_probs, const T* probs, const HeadGradient<T>& grad) const {
    backward(grad, [&](const Batch& batch, const DeviceGradient<T>& out) {
      SampleNumbers<T> given = numbers();
      if (work_.plan.tiles == 1)
        return start(shares() ? log_probs_backward_kernel<T, kSamples<T>, kWhole, true>
                              : log_probs_backward_kernel<T, kSamples<T>, kWhole, false>,
                     batch, given, grad_out, log_probs, probs, out);
      normalize<kForward>(batch, nullptr);
      T* const sums = given.number;
      given.number = memory_ + work_.tile_numbers;
      start(log_probs_backward_kernel<T, kSamples<T>, kTileSums, false>, batch, given, grad_out, log_probs, probs, out);
      sum_parts(given.number, work_.plan.tiles, batch.rows * head_.samples, sums);
      given.number = sums;
      start(shares() ? log_probs_backward_kernel<T, kSamples<T>, kTileGradients, true>
                     : log_probs_backward_kernel<T, kSamples<T>, kTileGradients, false>,
            batch, given, grad_out, log_probs, probs, out);
    });
  }

 private:
  template <class Body>
  void for_each_batch(const Body& body) const {
    for (int64_t first = 0; first < head_.rows; first += work_.batch_rows) {
      const int64_t left = head_.rows - first;
      const Batch batch{first, left < work_.batch_rows ? left : work_.batch_rows, memory_ + work_.factors,
                        memory_ + work_.lower};
      if (head_.cholesky) factorize(batch);
      body(batch);
    }
  }

  // Starts a kernel on the tiles of a batch.
  template <class Kernel, class... Arguments>
  void start(Kernel kernel, const Batch& batch, const Arguments&... arguments) const {
    start_slices(1, kernel, batch, arguments...);
  }
  template <class Kernel, class... Arguments>
  void start_slices(int slices, Kernel kernel, const Batch& batch, const Arguments&... arguments) const {
    const int64_t groups = work_.plan.groups(batch.rows), blocks = groups < work_.parts ? groups : work_.parts;
    launch(kernel,
           dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(work_.plan.tiles), static_cast<unsigned>(slices)),
           work_.plan.threads(), work_.plan.shared_bytes, stream_, device_head_, work_.plan, batch, arguments...);
  }

  void factorize(const Batch& batch) const {
    int threads = kWarp;
    while (threads < head_.classes && threads < kMostThreads) threads *= 2;
    launch(cholesky_kernel<T>, static_cast<unsigned>(batch.rows), threads, 0, stream_, given_, batch,
           reinterpret_cast<double*>(memory_ + work_.exact_lower));
  }

  bool shares() const { return work_.plan.log_sharing > 0; }

  SampleNumbers<T> numbers() const {
    T* const first = memory_ + work_.numbers;
    const int64_t size = work_.batch_rows * head_.samples;
    return {first, first + size, first + 2 * size};
  }

  template <Purpose kPurpose>
  void statistics(T* mean, T* variance, T* entropy) const {
    for_each_batch([&](const Batch& batch) {
      const int64_t count = batch.rows * head_.classes, first = batch.first_row * head_.classes;
      const Plan& plan = work_.plan;
      if (plan.tiles > 1) {
        normalize<kPurpose>(batch, nullptr);
        T* const parts = memory_ + work_.tile_rows;
        start(statistics_kernel<T, kSamples<T>, kPurpose, true>, batch, numbers(), mean + first, variance + first,
              parts);
        return sum_parts(parts, plan.tiles, batch.rows, entropy + batch.first_row);
      }
      const bool combines = plan.slices > 1;
      T* const m = combines ? memory_ + work_.slice_results : mean + first;
      T* const v = combines ? m + plan.slices * count : variance + first;
      T* const e = combines ? v + plan.slices * count : entropy + batch.first_row;
      start_slices(plan.slices, statistics_kernel<T, kSamples<T>, kPurpose, false>, batch, numbers(), m, v, e);
      if (combines)
        launch(combine_statistics_kernel<T>, blocks(count), kMostThreads, 0, stream_, plan, head_.samples, batch.rows,
               head_.classes, m, v, e, mean + first, variance + first, entropy + batch.first_row);
    });
  }

  template <Purpose kPurpose>
  void normalize(const Batch& batch, const int64_t* target) const {
    const int64_t count = batch.rows * head_.samples;
    T* const first = memory_ + work_.tile_numbers;
    const SampleNumbers<T> parts{first, first + count * work_.plan.tiles, numbers().number};
    start(normalize_kernel<T, kSamples<T>, kPurpose>, batch, parts, target);
    launch(combine_tiles_kernel<T>, blocks(count), kMostThreads, 0, stream_, parts, int64_t{work_.plan.tiles}, count,
           numbers());
  }

  void sum_parts(const T* parts, int64_t part_count, int64_t count, T* out) const {
    if (count > 0) launch(sum_parts_kernel<T>, blocks(count), kMostThreads, 0, stream_, parts, part_count, count, out);
  }

  static unsigned blocks(int64_t threads) {
    const int64_t needed = (threads + kMostThreads - 1) / kMostThreads;
    return static_cast<unsigned>(needed < kMostBlocks ? needed : kMostBlocks);
  }

  template <class Body>
  void backward(const HeadGradient<T>& grad, const Body& body) const {
    T* const temperature = memory_ + work_.temperature;
    DeviceGradient<T> out{grad, memory_ + work_.factor_parts, false, nullptr, nullptr};
    for_each_batch([&](const Batch& batch) {
      const int64_t scales = head_.factor_scale ? batch.rows * head_.factors : 0;
      T* const scale = grad.factor_scale + batch.first_row * head_.factors;
      const bool tiles = work_.plan.tiles > 1;
      out.temperature_parts = tiles ? memory_ + work_.tile_rows : temperature + batch.first_row;
      out.scale_parts = tiles ? memory_ + work_.tile_scales : scale;
      body(batch, out);
      out.adds_to_parts = true;
      if (!tiles) return;
      sum_parts(out.temperature_parts, work_.plan.tiles, batch.rows, temperature + batch.first_row);
      sum_parts(out.scale_parts, work_.plan.tiles, scales, scale);
    });
    launch(sum_kernel<T>, 1, kMostThreads, 0, stream_, temperature, head_.rows, grad.temperature);
    if (head_.shared_factor)
      sum_parts(out.factor_parts, head_.rows == 0 ? 0 : work_.parts, head_.classes * head_.factors, grad.factor);
  }

  Head<T> given_;
  DeviceHead<T> device_head_;
  Head<T> head_;
  Workspace<T> work_;
  cudaStream_t stream_;
  T* memory_;
};

}  // namespace cuda
}  // namespace hetnet
