// What each kernel does for one group of rows. Outputs begin at the first class of the head, which
// may be a tile, and their rows are as long as all classes.
#pragma once

#include "reduce.h"

namespace hetnet {
namespace HETNET_CPU_NAMESPACE {

template <class T, class Lanes>
void log_probs_of_group(const Head<T>& head, Sampler<T, Lanes>& sampler, bool split, T* log_probs, T* probs) {
  using V = Vec<T>;
  using X = typename Lanes::Total;
  using L = lane<X>;
  const int64_t classes = head.classes;
  const Lanes& lanes = sampler.lanes();
  Buffer<X> totals(2 * classes), log_prob(classes);
  const X per_sample = splat<X>(1) / splat<X>(static_cast<T>(head.samples));
  const X minus_infinity = splat<X>(-std::numeric_limits<T>::infinity());

  reduce_samples(head, sampler, ProbabilitySum<T, Lanes>{head}, split, totals.get());
  typename L::Mask underflows{};
  for (int64_t k = 0; k < classes; ++k) {
    const X prob = totals[k] * per_sample;
    lanes.put(probs, head.all_classes, k, prob);
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
  for (int64_t k = 0; k < classes; ++k) lanes.put(log_probs, head.all_classes, k, log_prob[k]);
}

// Returns the expected entropy: of a tile of classes, its part.
template <class T, class Lanes>
typename Lanes::Total statistics_of_group(const Head<T>& head, Sampler<T, Lanes>& sampler, bool split, T* mean,
                                          T* variance) {
  using X = typename Lanes::Total;
  const int64_t classes = head.classes;
  const Statistics<T, Lanes> reduction{head};
  Buffer<X> totals(reduction.totals());
  reduce_samples(head, sampler, reduction, split, totals.get());
  const X per_sample = splat<X>(1) / splat<X>(static_cast<T>(head.samples));
  for (int64_t k = 0; k < classes; ++k) {
    sampler.lanes().put(mean, head.all_classes, k, totals[k]);
    sampler.lanes().put(variance, head.all_classes, k, totals[classes + k] * per_sample);
  }
  return totals[2 * classes] * per_sample;
}

// Samples `first` to `last` - 1.
template <class T, class Lanes>
void sample_logits_of_group(const Head<T>& head, Sampler<T, Lanes>& sampler, int64_t first, int64_t last, T* out) {
  for (int64_t s = first; s < last; s += Lanes::samples_per_draw(head)) {
    const Draw<T, Lanes> draw = sampler.draw(s);
    sampler.lanes().scatter(head, s, draw.slices(), draw.utility, out);
  }
}

template <class T, class Lanes>
void sample_logits_backward_of_group(const Head<T>& head, Sampler<T, Lanes>& sampler, bool split, const T* grad_out,
                                     const HeadGradient<T>& grad, double* shared) {
  using X = typename Lanes::Total;
  Buffer<X> sums(GradientSums<T, Lanes>::totals(head));
  reduce_samples(head, sampler, GivenGradientSum<T, Lanes>{head, grad_out}, split, sums.get());
  GradientSums<T, Lanes>::store(head, sampler, sums.get(), splat<X>(1), grad, shared);
}

// The gradient of the log-probabilities and what weighs it, as vectors by class.
template <class T, class Lanes>
struct LogProbWeights {
  using V = Vec<T>;
  using L = lane<V>;
  typename Lanes::View upstream, result, prob;
  Buffer<V> log_prob, weight;
  typename L::Mask underflows{};  // rows in which some class's log-probability is no basis for its probability

  LogProbWeights(const Head<T>& head, const Lanes& lanes, const T* grad_out, const T* log_probs, const T* probs)
      : upstream(head.classes),
        result(head.classes),
        prob(head.classes),
        log_prob(Lanes::vectors(head.classes)),
        weight(Lanes::vectors(head.classes)) {
    upstream.bind(lanes, RowData<T>{grad_out, head.all_classes}, head.classes);
    result.bind(lanes, RowData<T>{log_probs, head.all_classes}, head.classes);
    prob.bind(lanes, RowData<T>{probs, head.all_classes}, head.classes);
    const V minus_infinity = splat<V>(-std::numeric_limits<T>::infinity());
    const V per_sample = splat<V>(1 / static_cast<T>(head.samples));
    for (int64_t c = 0; c < Lanes::vectors(head.classes); ++c) {
      const auto possible = result[c] != minus_infinity;  // true for NaN
      log_prob[c] = L::select(possible, result[c], V{});
      weight[c] = L::select(prob[c] != V{}, upstream[c] * per_sample / prob[c], V{});
      underflows = underflows | (possible & (result[c] < splat<V>(kSmallestLogProbability)));
    }
  }

  // Weights for ratios p_sk / p_k, which are taken relative to their own sum: log p_k is rounded, and
  // far from zero that is too much for its exponential.
  template <class RatioSum>
  void make_relative(int64_t classes, const RatioSum& ratio_sum) {
    const V minus_infinity = splat<V>(-std::numeric_limits<T>::infinity());
    fill(weight, Lanes::vectors(classes), 1);
    for (int64_t k = 0; k < classes; ++k) Lanes::set(weight.get(), k, ratio_sum(k));
    for (int64_t c = 0; c < Lanes::vectors(classes); ++c)
      weight[c] = L::select(result[c] != minus_infinity, upstream[c] / weight[c], V{});
  }
};

template <class T, class Lanes>
void log_probs_backward_of_group(const Head<T>& head, Sampler<T, Lanes>& sampler, bool split, const T* grad_out,
                                 const T* log_probs, const T* probs, const HeadGradient<T>& grad, double* shared) {
  using X = typename Lanes::Total;
  using L = lane<Vec<T>>;
  Buffer<X> sums(GradientSums<T, Lanes>::totals(head));
  LogProbWeights<T, Lanes> weights(head, sampler.lanes(), grad_out, log_probs, probs);
  const auto underflows = weights.underflows;

  const LogProbGradientSum<T, Lanes, false> direct{head, weights.weight.get(), weights.log_prob.get()};
  if (!L::any(underflows) || Lanes::rows_per_group > 1) reduce_samples(head, sampler, direct, split, sums.get());
  if (L::any(underflows)) {
    Buffer<X> ratio_sum(head.classes);
    const RelativeProbabilitySum<T, Lanes> ratios{head, weights.log_prob.get()};
    reduce_samples(head, sampler, ratios, split, ratio_sum.get());
    weights.make_relative(head.classes, [&](int64_t k) { return ratio_sum[k]; });
    const LogProbGradientSum<T, Lanes, true> relative{head, weights.weight.get(), weights.log_prob.get()};
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
}

// The weighted losses, and with kGradient their gradients.
template <bool kGradient, class T, class Lanes>
void nll_of_group(const Head<T>& head, const NllTarget<T>& target, Sampler<T, Lanes>& sampler, bool split, T* loss,
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

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
