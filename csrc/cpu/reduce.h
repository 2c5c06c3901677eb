// How a reduction runs over samples and rows, and how threads share them.
#pragma once

#include "parallel.h"
#include "reductions.h"

namespace hetnet {
namespace HETNET_CPU_NAMESPACE {

// Samples are summed in chunks of this many, which are then added in order: the order of
// every sum depends on the problem alone, never on the number of threads.
constexpr int64_t kChunk = 512;
// Chunks of one row whose sums are held at a time when threads share the row.
constexpr int64_t kChunksAtOnce = 64;
// Work below this many nanoseconds is not worth another thread.
constexpr int64_t kGrainNanoseconds = 20000;

template <class Lanes, class T>
int64_t group_count(const Head<T>& head) {
  return (head.rows + Lanes::rows_per_group - 1) / Lanes::rows_per_group;
}

// A rough cost, only to decide how to share work.
template <class T>
int64_t nanoseconds(const Head<T>& head, int64_t rows, int64_t samples) {
  const double normals = static_cast<double>(head.classes + head.factors);
  const double products = static_cast<double>(head.classes) * static_cast<double>(head.factors);
  const double ns = static_cast<double>(rows) * static_cast<double>(samples) * (2.0 * normals + 0.1 * products);
  return ns < 1e15 ? static_cast<int64_t>(ns) + 1 : static_cast<int64_t>(1e15);
}

inline int64_t grain(int64_t nanoseconds_each) {
  return nanoseconds_each < kGrainNanoseconds ? kGrainNanoseconds / nanoseconds_each : 1;
}

// Adds samples begin .. end-1 of the sampler's group of rows, and collapses them to totals.
template <class T, class Lanes, class State>
void reduce_chunk(const Head<T>& head, Sampler<T, Lanes>& sampler, State& state, int64_t begin, int64_t end,
                  typename Lanes::Total* totals) {
  state.clear();
  for (int64_t s = begin; s < end; s += Lanes::samples_per_draw(head)) state.add(sampler, sampler.draw(s));
  state.collapse(end - begin, totals);
}

// Reduces all samples of the sampler's group of rows to `totals`.
template <class T, class Reduction>
void reduce_samples(const Head<T>& head, Sampler<T, RowLanes<T>>& sampler, const Reduction& reduction, bool /*split*/,
                    Vec<T>* totals) {
  typename Reduction::State state(reduction);
  reduce_chunk(head, sampler, state, 0, head.samples, totals);
}

// With `split` the threads share the samples.
template <class T, class Lanes, class Reduction>
void reduce_samples(const Head<T>& head, Sampler<T, Lanes>& sampler, const Reduction& reduction, bool split,
                    double* totals) {
  const int64_t chunks = (head.samples + kChunk - 1) / kChunk;
  const auto end_of = [&](int64_t chunk) { return chunk + 1 < chunks ? (chunk + 1) * kChunk : head.samples; };
  const int64_t size = reduction.totals();

  if (!split) {
    typename Reduction::State state(reduction);
    Buffer<double> later(chunks > 1 ? size : 0);
    reduce_chunk(head, sampler, state, 0, end_of(0), totals);
    for (int64_t c = 1; c < chunks; ++c) {
      reduce_chunk(head, sampler, state, c * kChunk, end_of(c), later.get());
      reduction.merge(later.get(), totals);
    }
    return;
  }

  Buffer<double> chunk_totals(size * (chunks < kChunksAtOnce ? chunks : kChunksAtOnce));
  for (int64_t first = 0; first < chunks; first += kChunksAtOnce) {
    const int64_t count = chunks - first < kChunksAtOnce ? chunks - first : kChunksAtOnce;
    parallel_for(count, grain(nanoseconds(head, 1, kChunk)), [&](int64_t begin, int64_t end) {
      Sampler<T, Lanes> own(head);
      own.bind(sampler.lanes());
      typename Reduction::State state(reduction);
      for (int64_t c = begin; c < end; ++c)
        reduce_chunk(head, own, state, (first + c) * kChunk, end_of(first + c), &chunk_totals[c * size]);
    });
    for (int64_t c = 0; c < count; ++c) {
      if (first + c == 0)
        std::memcpy(totals, chunk_totals.get(), sizeof(double) * static_cast<std::size_t>(size));
      else
        reduction.merge(&chunk_totals[c * size], totals);
    }
  }
}

// Calls body(sampler, block, split) for every group of rows. Threads share the blocks of
// consecutive groups; where there are too few groups for that, `split` tells the body to
// let them share the samples.
template <class Lanes, class T, class Body>
void for_each_group(const Head<T>& head, int64_t blocks, const Body& body) {
  const int64_t groups = group_count<Lanes>(head);
  if (groups == 0) return;
  const auto run_blocks = [&](int64_t begin, int64_t end, bool split) {
    Sampler<T, Lanes> sampler(head);
    for (int64_t block = begin; block < end; ++block)
      for (int64_t g = block * groups / blocks; g < (block + 1) * groups / blocks; ++g) {
        sampler.bind(Lanes(head, g));
        body(sampler, block, split);
      }
  };
  const int64_t threads = num_threads();
  if (threads > 1 && groups < 2 * threads && head.samples > kChunk) {
    run_blocks(0, blocks, true);
  } else {
    const int64_t rows_each = (groups + blocks - 1) / blocks * Lanes::rows_per_group;
    parallel_for(blocks, grain(nanoseconds(head, rows_each, head.samples)),
                 [&](int64_t begin, int64_t end) { run_blocks(begin, end, false); });
  }
}

template <class Lanes, class T, class Body>
void for_each_group(const Head<T>& head, const Body& body) {
  for_each_group<Lanes>(head, group_count<Lanes>(head),
                        [&](Sampler<T, Lanes>& sampler, int64_t, bool split) { body(sampler, split); });
}

// Sums over the rows are made in blocks of rows, the blocks' in order. A number of blocks
// that depends on the problem alone keeps the result the same for any number of threads.
template <class T, class Lanes>
int64_t gradient_blocks(const Head<T>& head) {
  constexpr int64_t kMostBlocks = 64, kMostElements = int64_t{1} << 18;
  const int64_t groups = group_count<Lanes>(head);
  int64_t blocks = kMostElements / GradientSums<T, Lanes>::shared_size(head);
  blocks = blocks < 2 ? 2 : blocks > kMostBlocks ? kMostBlocks : blocks;
  return blocks < groups ? blocks : groups;
}

// Calls body(sampler, split, shared) for every group of rows, which stores their gradients; what
// it adds to `shared` is summed over all rows.
template <class T, class Lanes, class Body>
void reduce_gradient(const Head<T>& head, const HeadGradient<T>& grad, const Body& body) {
  const int64_t blocks = gradient_blocks<T, Lanes>(head);
  const int64_t size = GradientSums<T, Lanes>::shared_size(head);
  Buffer<double> shared(size * (blocks + 1));
  for (int64_t i = 0; i < size * (blocks + 1); ++i) shared[i] = 0;
  for_each_group<Lanes>(head, blocks, [&](Sampler<T, Lanes>& sampler, int64_t block, bool split) {
    body(sampler, split, &shared[size * (block + 1)]);
  });
  for (int64_t block = 1; block <= blocks; ++block)
    for (int64_t i = 0; i < size; ++i) shared[i] += shared[size * block + i];
  for (int64_t i = 0; i + 1 < size; ++i) grad.factor[i] = static_cast<T>(shared[i]);
  *grad.temperature = static_cast<T>(shared[size - 1]);
}

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
