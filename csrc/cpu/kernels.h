// The CPU kernels: noise, covariance and link drive a reduction, over rows and samples.
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

template <class T, class Lanes>
void log_probs(const Head<T>& head, T* log_probs, T* probs) {
  using V = Vec<T>;
  using X = typename Lanes::Total;
  using L = lane<X>;
  const int64_t classes = head.classes;
  for_each_group<Lanes>(head, [&](Sampler<T, Lanes>& sampler, bool split) {
    const Lanes& lanes = sampler.lanes();
    Buffer<X> totals(2 * classes), log_prob(classes);
    const X per_sample = splat<X>(1) / splat<X>(static_cast<T>(head.samples));
    const X minus_infinity = splat<X>(-std::numeric_limits<T>::infinity());

    reduce_samples(head, sampler, ProbabilitySum<T, Lanes>{head}, split, totals.get());
    typename L::Mask underflows{};
    for (int64_t k = 0; k < classes; ++k) {
      const X prob = totals[k] * per_sample;
      lanes.put(probs, classes, k, prob);
      log_prob[k] = log_or_limit(prob);
      const X largest = totals[classes + k];
      underflows = underflows | ((largest < splat<X>(kSmallestLogProbability)) & (largest > minus_infinity));
    }

    if (L::any(underflows)) {
      const int64_t vectors = Lanes::vectors(classes);
      Buffer<V> reference(vectors);
      Buffer<X> relative(classes);
      fill(reference, vectors, 0);
      for (int64_t k = 0; k < classes; ++k) {
        const X largest = totals[classes + k];
        Lanes::set(reference.get(), k, L::select(largest > minus_infinity, largest, X{}));
      }
      reduce_samples(head, sampler, RelativeProbabilitySum<T, Lanes>{head, reference.get()}, split, relative.get());
      for (int64_t k = 0; k < classes; ++k) {
        const X exact = Lanes::at(reference.get(), k) + log_or_limit(relative[k] * per_sample);
        log_prob[k] = L::select(underflows, exact, log_prob[k]);
      }
    }
    for (int64_t k = 0; k < classes; ++k) lanes.put(log_probs, classes, k, log_prob[k]);
  });
}

template <class T, class Lanes>
void statistics(const Head<T>& head, T* mean, T* variance, T* entropy) {
  using X = typename Lanes::Total;
  const int64_t classes = head.classes;
  for_each_group<Lanes>(head, [&](Sampler<T, Lanes>& sampler, bool split) {
    const Lanes& lanes = sampler.lanes();
    const Statistics<T, Lanes> reduction{head};
    Buffer<X> totals(reduction.totals());
    reduce_samples(head, sampler, reduction, split, totals.get());
    const X per_sample = splat<X>(1) / splat<X>(static_cast<T>(head.samples));
    for (int64_t k = 0; k < classes; ++k) {
      lanes.put(mean, classes, k, totals[k]);
      lanes.put(variance, classes, k, totals[classes + k] * per_sample);
    }
    lanes.put(entropy, 1, 0, totals[2 * classes] * per_sample);
  });
}

template <class T, class Lanes>
void sample_logits(const Head<T>& head, T* out) {
  const int64_t chunks = (head.samples + kChunk - 1) / kChunk;
  const int64_t groups = group_count<Lanes>(head);
  const int64_t samples_each = head.samples < kChunk ? head.samples : kChunk;
  parallel_for(groups * chunks, grain(nanoseconds(head, Lanes::rows_per_group, samples_each)),
               [&](int64_t begin, int64_t end) {
                 Sampler<T, Lanes> sampler(head);
                 for (int64_t item = begin; item < end; ++item) {
                   const Lanes lanes(head, item / chunks);
                   sampler.bind(lanes);
                   const int64_t first = item % chunks * kChunk;
                   const int64_t last = first + kChunk < head.samples ? first + kChunk : head.samples;
                   for (int64_t s = first; s < last; s += Lanes::samples_per_draw(head)) {
                     const Draw<T, Lanes> draw = sampler.draw(s);
                     lanes.scatter(head, s, draw.slices(), draw.utility, out);
                   }
                 }
               });
}

// Sums over the rows are made in blocks of rows, the blocks' in order. A number of blocks
// that depends on the problem alone keeps the result the same for any number of threads.
template <class T, class Lanes>
int64_t gradient_blocks(const Head<T>& head) {
  constexpr int64_t kMostBlocks = 64, kMostElements = int64_t{1} << 20;
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

template <class T, class Lanes>
void sample_logits_backward(const Head<T>& head, const T* grad_out, const HeadGradient<T>& grad) {
  using X = typename Lanes::Total;
  reduce_gradient<T, Lanes>(head, grad, [&](Sampler<T, Lanes>& sampler, bool split, double* shared) {
    Buffer<X> sums(GradientSums<T, Lanes>::totals(head));
    reduce_samples(head, sampler, GivenGradientSum<T, Lanes>{head, grad_out}, split, sums.get());
    GradientSums<T, Lanes>::store(head, sampler, sums.get(), splat<X>(1), grad, shared);
  });
}

template <class T, class Lanes>
void log_probs_backward(const Head<T>& head, const T* grad_out, const T* log_probs, const T* probs,
                        const HeadGradient<T>& grad) {
  using V = Vec<T>;
  using X = typename Lanes::Total;
  using L = lane<V>;
  const int64_t classes = head.classes, vectors = Lanes::vectors(classes);
  reduce_gradient<T, Lanes>(head, grad, [&](Sampler<T, Lanes>& sampler, bool split, double* shared) {
    const Lanes& lanes = sampler.lanes();
    Buffer<X> sums(GradientSums<T, Lanes>::totals(head));
    typename Lanes::View upstream(classes), result(classes), prob(classes);
    upstream.bind(lanes, RowData<T>{grad_out, classes}, classes);
    result.bind(lanes, RowData<T>{log_probs, classes}, classes);
    prob.bind(lanes, RowData<T>{probs, classes}, classes);

    const V minus_infinity = splat<V>(-std::numeric_limits<T>::infinity());
    const V per_sample = splat<V>(1 / static_cast<T>(head.samples));
    Buffer<V> weight(vectors), log_prob(vectors);
    typename L::Mask underflows{};
    for (int64_t c = 0; c < vectors; ++c) {
      const V lp = result[c];
      const auto possible = lp != minus_infinity;  // true for NaN
      log_prob[c] = L::select(possible, lp, V{});
      weight[c] = L::select(prob[c] != V{}, upstream[c] * per_sample / prob[c], V{});
      underflows = underflows | (possible & (lp < splat<V>(kSmallestLogProbability)));
    }
    const LogProbGradientSum<T, Lanes, false> direct{head, weight.get(), log_prob.get()};
    if (!L::any(underflows) || Lanes::rows_per_group > 1) reduce_samples(head, sampler, direct, split, sums.get());
    if (L::any(underflows)) {
      // The ratios p_sk / p_k are taken relative to their own sum: log p_k is rounded, and far
      // from zero that is too much for its exponential.
      Buffer<X> ratio_sum(classes);
      reduce_samples(head, sampler, RelativeProbabilitySum<T, Lanes>{head, log_prob.get()}, split, ratio_sum.get());
      Buffer<V> relative_weight(vectors);
      fill(relative_weight, vectors, 1);
      for (int64_t k = 0; k < classes; ++k) Lanes::set(relative_weight.get(), k, ratio_sum[k]);
      for (int64_t c = 0; c < vectors; ++c)
        relative_weight[c] = L::select(result[c] != minus_infinity, upstream[c] / relative_weight[c], V{});
      const LogProbGradientSum<T, Lanes, true> relative{head, relative_weight.get(), log_prob.get()};
      if constexpr (Lanes::rows_per_group == 1) {
        reduce_samples(head, sampler, relative, split, sums.get());
      } else {
        // Lanes are other rows, whose results must not depend on their neighbours.
        Buffer<X> exact(relative.totals());
        reduce_samples(head, sampler, relative, split, exact.get());
        for (int64_t i = 0; i < relative.totals(); ++i) sums[i] = L::select(underflows, exact[i], sums[i]);
      }
    }
    GradientSums<T, Lanes>::store(head, sampler, sums.get(), splat<X>(1), grad, shared);
  });
}

// One group of rows of nll(): the weighted losses, and with kGradient their gradients.
template <bool kGradient, class T, class Lanes>
void nll_group(const Head<T>& head, const NllTarget<T>& target, Sampler<T, Lanes>& sampler, bool split, T* loss,
               const HeadGradient<T>* grad, double* shared) {
  using V = Vec<T>;
  using X = typename Lanes::Total;
  using L = lane<X>;
  const Lanes& lanes = sampler.lanes();
  const X minus_infinity = splat<X>(-std::numeric_limits<T>::infinity());

  const LikelihoodSum<T, Lanes, false, kGradient> direct{head, target.classes, V{}};
  const int64_t size = direct.totals();
  Buffer<X> totals(size);
  reduce_samples(head, sampler, direct, split, totals.get());
  const X largest = totals[1];
  const auto underflows = (largest < splat<X>(kSmallestLogProbability)) & (largest > minus_infinity);
  const X reference = L::select(underflows, largest, X{});
  if (L::any(underflows)) {
    const LikelihoodSum<T, Lanes, true, kGradient> relative{head, target.classes, lanes.spread(reference)};
    Buffer<X> exact(size);
    reduce_samples(head, sampler, relative, split, exact.get());
    for (int64_t i = 0; i < size; ++i) totals[i] = L::select(underflows, exact[i], totals[i]);
  }

  // Rows of weight 0 count for nothing, not even as NaN.
  const X weight = lanes.get(target.row_weight), sum = totals[0];
  const auto counts = weight != X{};
  const X log_likelihood = reference + log_or_limit(sum / splat<X>(static_cast<T>(head.samples)));
  lanes.put(loss, 1, 0, L::select(counts, -weight * log_likelihood, X{}));
  if constexpr (kGradient) {
    for (int64_t i = 2; i < size; ++i) totals[i] = L::select(counts, totals[i], X{});
    const X factor = L::select(counts & (sum != X{}), weight / sum, X{});
    GradientSums<T, Lanes>::store(head, sampler, &totals[2], factor, *grad, shared);
  }
}

template <class T, class Lanes>
void nll(const Head<T>& head, const NllTarget<T>& target, T* loss, const HeadGradient<T>* grad) {
  if (grad)
    reduce_gradient<T, Lanes>(head, *grad, [&](Sampler<T, Lanes>& sampler, bool split, double* shared) {
      nll_group<true>(head, target, sampler, split, loss, grad, shared);
    });
  else
    for_each_group<Lanes>(head, [&](Sampler<T, Lanes>& sampler, bool split) {
      nll_group<false>(head, target, sampler, split, loss, grad, nullptr);
    });
}

// Which lanes a head takes depends on neither the number of rows nor of threads, so that a row's
// result does not either.

// Where the classes fill many vectors. With fewer, the other two are as fast or faster.
template <class T>
bool classes_along_lanes(const Head<T>& head) {
  return head.classes >= 128 && !head.cholesky;
}

// Where there are few samples and the transposed parameters stay in the first-level cache.
template <class T>
bool rows_along_lanes(const Head<T>& head) {
  constexpr int64_t kWidth = lane<Vec<T>>::width;
  const int64_t tile_bytes = HETNET_VECTOR_BYTES * head.classes * (head.factors + 2);
  return head.samples < kWidth || (head.samples < 4 * kWidth && tile_bytes <= 16384);
}

template <class Lanes>
struct Along {
  using type = Lanes;
};

// Calls kernel(Along<Lanes>()) with the lanes for a head.
template <class T, class Kernel>
void choose_lanes(const Head<T>& head, const Kernel& kernel) {
  if (classes_along_lanes(head))
    kernel(Along<ClassLanes<T>>());
  else if (rows_along_lanes(head))
    kernel(Along<RowLanes<T>>());
  else
    kernel(Along<SampleLanes<T>>());
}

template <class T>
Kernels<T> kernel_table() {
  return {
      [](const Head<T>& head, T* out) {
        choose_lanes(head, [&](auto along) { sample_logits<T, typename decltype(along)::type>(head, out); });
      },
      [](const Head<T>& head, const T* grad_out, const HeadGradient<T>& grad) {
        choose_lanes(
            head, [&](auto along) { sample_logits_backward<T, typename decltype(along)::type>(head, grad_out, grad); });
      },
      [](const Head<T>& head, T* lp, T* probs) {
        choose_lanes(head, [&](auto along) { log_probs<T, typename decltype(along)::type>(head, lp, probs); });
      },
      [](const Head<T>& head, const T* grad_out, const T* lp, const T* probs, const HeadGradient<T>& grad) {
        choose_lanes(head, [&](auto along) {
          log_probs_backward<T, typename decltype(along)::type>(head, grad_out, lp, probs, grad);
        });
      },
      [](const Head<T>& head, const NllTarget<T>& target, T* loss, const HeadGradient<T>* grad) {
        choose_lanes(head, [&](auto along) { nll<T, typename decltype(along)::type>(head, target, loss, grad); });
      },
      [](const Head<T>& head, T* mean, T* variance, T* entropy) {
        choose_lanes(head,
                     [&](auto along) { statistics<T, typename decltype(along)::type>(head, mean, variance, entropy); });
      },
  };
}

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
