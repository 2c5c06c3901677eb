// What is kept of the samples.
//
// A reduction adds draws to a number of vectors, from `clear` on, one chunk of samples at a
// time. `collapse` turns a chunk's vectors into totals, one number a row, and `merge` adds the
// totals of a later chunk. Several threads may share a reduction, each with its own vectors
// and scratch.
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

// Sums over the samples, then maxima over them. The totals are in the same order.
template <class T>
struct SumsAndMaxima {
  using V = Vec<T>;
  int64_t sums, maxima;

  int64_t vectors() const { return sums + maxima; }
  int64_t totals() const { return vectors(); }

  void clear(V* vectors) const {
    for (int64_t i = 0; i < sums; ++i) vectors[i] = V{};
    for (int64_t i = 0; i < maxima; ++i) vectors[sums + i] = splat<V>(-std::numeric_limits<T>::infinity());
  }
  // Lanes are samples.
  void collapse(const V* vectors, int64_t /*samples*/, double* totals) const {
    for (int64_t i = 0; i < sums; ++i) totals[i] = lane<V>::sum(vectors[i]);
    for (int64_t i = sums; i < sums + maxima; ++i) totals[i] = lane<V>::max_over_lanes(vectors[i]);
  }
  void merge(const double* later, double* totals) const {
    for (int64_t i = 0; i < sums; ++i) totals[i] += later[i];
    for (int64_t i = sums; i < sums + maxima; ++i) totals[i] = later[i] > totals[i] ? later[i] : totals[i];
  }
  // Lanes are rows.
  void collapse(const V* vectors, int64_t /*samples*/, V* totals) const {
    for (int64_t i = 0; i < sums + maxima; ++i) totals[i] = vectors[i];
  }
};

// Sums of p_k, and the largest log p_k.
template <class T>
struct ProbabilitySum : SumsAndMaxima<T> {
  using V = Vec<T>;

  explicit ProbabilitySum(const Head<T>& head) : SumsAndMaxima<T>{head.classes, head.classes} {}

  template <class Lanes>
  void add(const Sampler<T, Lanes>&, const Draw<T>& draw, V* scratch, V* vectors) const {
    const int64_t classes = this->sums;
    const auto link = softmax(draw.utility, classes, draw.valid, scratch);
    for (int64_t k = 0; k < classes; ++k) {
      vectors[k] = lane<V>::fmadd(scratch[k], link.inverse_sum, vectors[k]);
      vectors[classes + k] = lane<V>::maximum(vectors[classes + k], link.log_probability(draw.utility[k]));
    }
  }
};

// Sums of exp(log p_k - reference_k).
template <class T>
struct RelativeProbabilitySum : SumsAndMaxima<T> {
  using V = Vec<T>;
  const V* reference;

  RelativeProbabilitySum(const Head<T>& head, const V* ref) : SumsAndMaxima<T>{head.classes, 0}, reference(ref) {}

  template <class Lanes>
  void add(const Sampler<T, Lanes>&, const Draw<T>& draw, V* scratch, V* vectors) const {
    const auto link = softmax(draw.utility, this->sums, draw.valid, scratch);
    for (int64_t k = 0; k < this->sums; ++k) vectors[k] += exp(link.log_probability(draw.utility[k]) - reference[k]);
  }
};

// Mean and squared distances from it of p_k, and the sum of the entropy.
//
// Vectors: sums of p_k - shift_k, sums of (p_k - shift_k)^2, the entropy, the shift, which is
// the mean of a chunk's first draw: near enough to the mean to keep the variance from
// cancelling. Totals: mean, sum of squared distances from it, entropy, number of samples.
template <class T>
struct Statistics {
  using V = Vec<T>;
  int64_t classes;

  int64_t vectors() const { return 3 * classes + 1; }
  int64_t totals() const { return 2 * classes + 2; }

  void clear(V* vectors) const {
    for (int64_t i = 0; i < 2 * classes + 1; ++i) vectors[i] = V{};
    vectors[2 * classes + 1] = splat<V>(-1);  // no shift yet: it lies between 0 and 1, or is NaN
  }

  template <class Lanes>
  void add(const Sampler<T, Lanes>&, const Draw<T>& draw, V* scratch, V* vectors) const {
    const auto link = softmax<true>(draw.utility, classes, draw.valid, scratch);
    V* shift = vectors + 2 * classes + 1;
    if (shift[0][0] == T(-1))
      for (int64_t k = 0; k < classes; ++k) shift[k] = Lanes::mean(scratch[k] * link.inverse_sum, draw.valid);
    for (int64_t k = 0; k < classes; ++k) {
      // not fused, so that equal probabilities have a variance of exactly 0
      const V distance = scratch[k] * link.inverse_sum - shift[k];
      const V difference = lane<V>::select(draw.valid, distance, V{});
      vectors[k] += difference;
      vectors[classes + k] = lane<V>::fmadd(difference, difference, vectors[classes + k]);
    }
    vectors[2 * classes] += link.entropy;
  }

  // Lanes are samples, lanes are rows: the same formulas on their sums.
  void collapse(const V* vectors, int64_t samples, double* totals) const {
    collapse_to(
        vectors, samples, totals, [](V x) { return static_cast<double>(lane<V>::sum(x)); },
        [](V x) { return static_cast<double>(x[0]); });
  }
  void collapse(const V* vectors, int64_t samples, V* totals) const {
    collapse_to(vectors, samples, totals, [](V x) { return x; }, [](V x) { return x; });
  }

  // Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
  // variances" (1979).
  void merge(const double* later, double* totals) const {
    double* count = totals + 2 * classes + 1;
    const double later_count = later[2 * classes + 1], both = *count + later_count;
    for (int64_t k = 0; k < classes; ++k) {
      const double distance = later[k] - totals[k];
      totals[k] += distance * (later_count / both);
      totals[classes + k] += later[classes + k] + distance * distance * (*count * later_count / both);
    }
    totals[2 * classes] += later[2 * classes];
    *count = both;
  }

 private:
  template <class X, class Sum, class Value>
  void collapse_to(const V* vectors, int64_t samples, X* totals, Sum sum, Value value) const {
    const X count = splat<X>(static_cast<typename lane<X>::Scalar>(samples));
    for (int64_t k = 0; k < classes; ++k) {
      const X difference = sum(vectors[k]);
      const X squares = lane<X>::fmadd(-difference, difference / count, sum(vectors[classes + k]));
      totals[k] = value(vectors[2 * classes + 1 + k]) + difference / count;
      totals[classes + k] = lane<X>::select(squares < X{}, X{}, squares);
    }
    totals[2 * classes] = sum(vectors[2 * classes]);
    totals[2 * classes + 1] = count;
  }
};

// Gradient sums for a given gradient of the sampled utilities.
template <class T>
struct GivenGradientSum : SumsAndMaxima<T> {
  using V = Vec<T>;
  const Head<T>& head;
  const T* grad_utility;  // samples x rows x classes

  GivenGradientSum(const Head<T>& h, const T* grad)
      : SumsAndMaxima<T>{GradientSums<T>::size(h), 0}, head(h), grad_utility(grad) {}

  template <class Lanes>
  void add(const Sampler<T, Lanes>& sampler, const Draw<T>& draw, V* scratch, V* vectors) const {
    V* delta = scratch;
    const V minus_infinity = splat<V>(-std::numeric_limits<T>::infinity());
    for (int64_t k = 0; k < head.classes; ++k) {
      const V gradient = sampler.lanes().gather(head, draw.sample, k, grad_utility);
      delta[k] = lane<V>::select(draw.utility[k] != minus_infinity, gradient, V{});  // a masked class has none
    }
    GradientSums<T>::add(head, sampler, draw, delta, V{}, scratch + head.classes, vectors);
  }
};

// Gradient sums for a gradient g of log p: with a_k = g_k exp(log p_sk - log p_k) / S the
// gradient of a sample's utilities is a_k - p_sk sum_j a_j.
//
// With kRelative, a_k is `weight` times the ratio exp(log p_sk - log p_k); without it, `weight`
// has the division by p_k in it.
template <class T, bool kRelative>
struct LogProbGradientSum : SumsAndMaxima<T> {
  using V = Vec<T>;
  const Head<T>& head;
  const V* weight;
  const V* log_prob;

  LogProbGradientSum(const Head<T>& h, const V* w, const V* lp)
      : SumsAndMaxima<T>{GradientSums<T>::size(h), 0}, head(h), weight(w), log_prob(lp) {}

  template <class Lanes>
  void add(const Sampler<T, Lanes>& sampler, const Draw<T>& draw, V* scratch, V* vectors) const {
    using L = lane<V>;
    V* probability = scratch;
    V* delta = scratch + head.classes;
    const auto link = softmax(draw.utility, head.classes, draw.valid, probability);
    V sum{};
    for (int64_t k = 0; k < head.classes; ++k) {
      probability[k] *= link.inverse_sum;
      const V ratio = kRelative ? exp(link.log_probability(draw.utility[k]) - log_prob[k]) : probability[k];
      delta[k] = weight[k] * ratio;
      sum += delta[k];
    }
    for (int64_t k = 0; k < head.classes; ++k) delta[k] = L::fmadd(-probability[k], sum, delta[k]);
    GradientSums<T>::add(head, sampler, draw, delta, link.max, scratch + 2 * head.classes, vectors);
  }
};

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
