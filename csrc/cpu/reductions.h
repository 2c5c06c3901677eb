// What is kept of the samples. Each reduction says how many sums and maxima over the
// samples it needs, and adds one draw to them, with scratch for `scratch_size` vectors.
// Several threads may add to sums of their own through one reduction.
#pragma once

#include "covariance.h"
#include "link.h"

namespace hetnet {
namespace HETNET_CPU_NAMESPACE {

// A class whose log-probability in every sample is below this is summed relative to its
// own largest term, since the probabilities themselves come near underflow.
constexpr int kSmallestLogProbability = -64;

template <class T>
int64_t scratch_size(const Head<T>& head) {
  return 2 * head.classes + head.factors;
}

// Sums of p_k, and the largest log p_k.
template <class T>
struct ProbabilitySum {
  using V = Vec<T>;
  int64_t sums, maxima;

  explicit ProbabilitySum(const Head<T>& head) : sums(head.classes), maxima(head.classes) {}

  template <class Lanes>
  void add(const Sampler<T, Lanes>&, const Draw<T>& draw, V* scratch, V* totals) const {
    const auto link = softmax(draw.utility, sums, draw.valid, scratch);
    for (int64_t k = 0; k < sums; ++k) {
      totals[k] = lane<V>::fmadd(scratch[k], link.inverse_sum, totals[k]);
      totals[sums + k] = lane<V>::maximum(totals[sums + k], link.log_probability(draw.utility[k]));
    }
  }
};

// Sums of exp(log p_k - reference_k).
template <class T>
struct RelativeProbabilitySum {
  using V = Vec<T>;
  int64_t sums, maxima = 0;
  const V* reference;

  RelativeProbabilitySum(const Head<T>& head, const V* ref) : sums(head.classes), reference(ref) {}

  template <class Lanes>
  void add(const Sampler<T, Lanes>&, const Draw<T>& draw, V* scratch, V* totals) const {
    const auto link = softmax(draw.utility, sums, draw.valid, scratch);
    for (int64_t k = 0; k < sums; ++k)
      totals[k] += exp(link.log_probability(draw.utility[k]) - reference[k]);
  }
};

// Sums of p_k - shift_k, of (p_k - shift_k)^2 and of the entropy. The shift, near the mean,
// keeps the variance from cancelling.
template <class T>
struct StatisticsSum {
  using V = Vec<T>;
  int64_t classes, sums, maxima = 0;
  const V* shift;

  StatisticsSum(const Head<T>& head, const V* s) : classes(head.classes), sums(2 * head.classes + 1), shift(s) {}

  template <class Lanes>
  void add(const Sampler<T, Lanes>&, const Draw<T>& draw, V* scratch, V* totals) const {
    const auto link = softmax<true>(draw.utility, classes, draw.valid, scratch);
    for (int64_t k = 0; k < classes; ++k) {
      const V distance = lane<V>::fmadd(scratch[k], link.inverse_sum, -shift[k]);
      const V difference = lane<V>::select(draw.valid, distance, V{});
      totals[k] += difference;
      totals[classes + k] = lane<V>::fmadd(difference, difference, totals[classes + k]);
    }
    totals[2 * classes] += link.entropy;
  }
};

// Gradient sums for a given gradient of the sampled utilities.
template <class T>
struct GivenGradientSum {
  using V = Vec<T>;
  const Head<T>& head;
  const T* grad_utility;  // samples x rows x classes
  int64_t sums, maxima = 0;

  GivenGradientSum(const Head<T>& h, const T* grad) : head(h), grad_utility(grad), sums(GradientSums<T>::size(h)) {}

  template <class Lanes>
  void add(const Sampler<T, Lanes>& sampler, const Draw<T>& draw, V* scratch, V* totals) const {
    V* delta = scratch;
    for (int64_t k = 0; k < head.classes; ++k) delta[k] = sampler.lanes().gather(head, draw.sample, k, grad_utility);
    GradientSums<T>::add(head, sampler, draw, delta, scratch + head.classes, totals);
  }
};

// Gradient sums for a gradient g of log p: with a_k = g_k exp(log p_sk - log p_k) / S the
// gradient of a sample's utilities is a_k - p_sk sum_j a_j.
//
// With kRelative the ratio is taken in the log domain and `weight` is g / S; without it,
// `weight` is g / (S p) and multiplies the probability.
template <class T, bool kRelative>
struct LogProbGradientSum {
  using V = Vec<T>;
  const Head<T>& head;
  const V* weight;
  const V* log_prob;
  int64_t sums, maxima = 0;

  LogProbGradientSum(const Head<T>& h, const V* w, const V* lp)
      : head(h), weight(w), log_prob(lp), sums(GradientSums<T>::size(h)) {}

  template <class Lanes>
  void add(const Sampler<T, Lanes>& sampler, const Draw<T>& draw, V* scratch, V* totals) const {
    using L = lane<V>;
    V* probability = scratch;
    V* delta = scratch + head.classes;
    const auto link = softmax(draw.utility, head.classes, draw.valid, probability);
    V sum{};
    for (int64_t k = 0; k < head.classes; ++k) {
      probability[k] *= link.inverse_sum;
      const V ratio =
          kRelative ? exp(link.log_probability(draw.utility[k]) - log_prob[k]) : probability[k];
      delta[k] = weight[k] * ratio;
      sum += delta[k];
    }
    for (int64_t k = 0; k < head.classes; ++k) delta[k] = L::fmadd(-probability[k], sum, delta[k]);
    GradientSums<T>::add(head, sampler, draw, delta, scratch + 2 * head.classes, totals);
  }
};

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
