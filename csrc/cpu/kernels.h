// The CPU kernels, each on the lanes or tiles that suit the head.
#pragma once

#include "tiles.h"

namespace hetnet {
namespace HETNET_CPU_NAMESPACE {

template <class T, class Lanes>
void log_probs(const Head<T>& head, T* log_probs, T* probs) {
  for_each_group<Lanes>(head, [&](Sampler<T, Lanes>& sampler, bool split) {
    log_probs_of_group(head, sampler, split, log_probs, probs);
  });
}

template <class T, class Lanes>
void statistics(const Head<T>& head, T* mean, T* variance, T* entropy) {
  for_each_group<Lanes>(head, [&](Sampler<T, Lanes>& sampler, bool split) {
    sampler.lanes().put(entropy, 1, 0, statistics_of_group(head, sampler, split, mean, variance));
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
                   const int64_t first = item % chunks * kChunk;
                   const int64_t last = first + kChunk < head.samples ? first + kChunk : head.samples;
                   sampler.bind(Lanes(head, item / chunks));
                   sample_logits_of_group(head, sampler, first, last, out);
                 }
               });
}

template <class T, class Lanes>
void sample_logits_backward(const Head<T>& head, const T* grad_out, const HeadGradient<T>& grad) {
  reduce_gradient<T, Lanes>(head, grad, [&](Sampler<T, Lanes>& sampler, bool split, double* shared) {
    sample_logits_backward_of_group(head, sampler, split, grad_out, grad, shared);
  });
}

template <class T, class Lanes>
void log_probs_backward(const Head<T>& head, const T* grad_out, const T* log_probs, const T* probs,
                        const HeadGradient<T>& grad) {
  reduce_gradient<T, Lanes>(head, grad, [&](Sampler<T, Lanes>& sampler, bool split, double* shared) {
    log_probs_backward_of_group(head, sampler, split, grad_out, log_probs, probs, grad, shared);
  });
}

template <class T, class Lanes>
void nll(const Head<T>& head, const NllTarget<T>& target, T* loss, const HeadGradient<T>* grad) {
  if (grad)
    reduce_gradient<T, Lanes>(head, *grad, [&](Sampler<T, Lanes>& sampler, bool split, double* shared) {
      nll_of_group<true>(head, target, sampler, split, loss, grad, shared);
    });
  else
    for_each_group<Lanes>(head, [&](Sampler<T, Lanes>& sampler, bool split) {
      nll_of_group<false>(head, target, sampler, split, loss, grad, nullptr);
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
        if (takes_tiles(head)) return sample_logits_in_tiles(head, out);
        choose_lanes(head, [&](auto along) { sample_logits<T, typename decltype(along)::type>(head, out); });
      },
      [](const Head<T>& head, const T* grad_out, const HeadGradient<T>& grad) {
        if (takes_tiles(head)) return sample_logits_backward_in_tiles(head, grad_out, grad);
        choose_lanes(
            head, [&](auto along) { sample_logits_backward<T, typename decltype(along)::type>(head, grad_out, grad); });
      },
      [](const Head<T>& head, T* lp, T* probs) {
        if (takes_tiles(head)) return log_probs_in_tiles(head, lp, probs);
        choose_lanes(head, [&](auto along) { log_probs<T, typename decltype(along)::type>(head, lp, probs); });
      },
      [](const Head<T>& head, const T* grad_out, const T* lp, const T* probs, const HeadGradient<T>& grad) {
        if (takes_tiles(head)) return LogProbsBackwardInTiles<T>(head, grad_out, lp, probs, grad).run();
        choose_lanes(head, [&](auto along) {
          log_probs_backward<T, typename decltype(along)::type>(head, grad_out, lp, probs, grad);
        });
      },
      [](const Head<T>& head, const NllTarget<T>& target, T* loss, const HeadGradient<T>* grad) {
        if (takes_tiles(head)) return nll_in_tiles(head, target, loss, grad);
        choose_lanes(head, [&](auto along) { nll<T, typename decltype(along)::type>(head, target, loss, grad); });
      },
      [](const Head<T>& head, T* mean, T* variance, T* entropy) {
        if (takes_tiles(head)) return statistics_in_tiles(head, mean, variance, entropy);
        choose_lanes(head,
                     [&](auto along) { statistics<T, typename decltype(along)::type>(head, mean, variance, entropy); });
      },
  };
}

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
