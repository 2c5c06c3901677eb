// What is kept of the samples.
//
// A reduction's State adds the draws of one chunk of samples, from `clear` on, and `collapse`
// turns it into totals, one number a row; `merge` adds the totals of a later chunk. Threads
// share the reduction, and each has a State.
#pragma once

#include "gradient.h"
#include "link.h"

namespace hetnet {
namespace HETNET_CPU_NAMESPACE {

// A class whose log-probability in every sample is below this is summed relative to its
// own largest term, since the probabilities themselves come near underflow.
constexpr int kSmallestLogProbability = -64;

// A sum and, where asked for, a maximum over the samples for each class. The totals are the
// sums, then the maxima.
template <class T, class Lanes>
class ClassSums {
  using V = Vec<T>;

 public:
  ClassSums(int64_t sums, int64_t maxima) : sums_(sums), maxima_(maxima), vectors_(sums + maxima) {}

  void clear() {
    for (int64_t i = 0; i < sums_; ++i) vectors_[i] = V{};
    for (int64_t i = 0; i < maxima_; ++i) vectors_[sums_ + i] = splat<V>(-std::numeric_limits<T>::infinity());
  }
  V& sum(int64_t i) { return vectors_[i]; }
  V& maximum(int64_t i) { return vectors_[sums_ + i]; }

  void collapse(typename Lanes::Total* totals) const {
    Lanes::over_samples(vectors_.get(), sums_, totals);
    for (int64_t i = sums_; i < sums_ + maxima_; ++i) totals[i] = Lanes::max_over_samples(vectors_[i]);
  }

 private:
  int64_t sums_, maxima_;
  Buffer<V> vectors_;
};

// Adds `sums` sums and then maxima of a later chunk.
inline void merge_sums(const double* later, double* totals, int64_t sums, int64_t maxima) {
  for (int64_t i = 0; i < sums; ++i) totals[i] += later[i];
  for (int64_t i = sums; i < sums + maxima; ++i) totals[i] = later[i] > totals[i] ? later[i] : totals[i];
}

// Sums of p_k, and the largest log p_k.
template <class T, class Lanes>
struct ProbabilitySum {
  using V = Vec<T>;
  int64_t classes;

  explicit ProbabilitySum(const Head<T>& head) : classes(head.classes) {}
  int64_t totals() const { return 2 * classes; }
  void merge(const double* later, double* totals) const { merge_sums(later, totals, classes, classes); }

  struct State {
    int64_t classes;
    ClassSums<T, Lanes> sums;
    Buffer<V> probability;

    explicit State(const ProbabilitySum& r) : classes(r.classes), sums(classes, classes), probability(classes) {}
    void clear() { sums.clear(); }
    void add(const Sampler<T, Lanes>&, const Draw<T>& draw) {
      const auto link = softmax(draw.utility, classes, draw.valid, probability.get());
      for (int64_t k = 0; k < classes; ++k) {
        sums.sum(k) = lane<V>::fmadd(probability[k], link.inverse_sum, sums.sum(k));
        sums.maximum(k) = lane<V>::maximum(sums.maximum(k), link.log_probability(draw.utility[k]));
      }
    }
    void collapse(int64_t /*samples*/, typename Lanes::Total* totals) { sums.collapse(totals); }
  };
};

// Sums of exp(log p_k - reference_k).
template <class T, class Lanes>
struct RelativeProbabilitySum {
  using V = Vec<T>;
  int64_t classes;
  const V* reference;

  RelativeProbabilitySum(const Head<T>& head, const V* ref) : classes(head.classes), reference(ref) {}
  int64_t totals() const { return classes; }
  void merge(const double* later, double* totals) const { merge_sums(later, totals, classes, 0); }

  struct State {
    int64_t classes;
    const V* reference;
    ClassSums<T, Lanes> sums;
    Buffer<V> probability;

    explicit State(const RelativeProbabilitySum& r)
        : classes(r.classes), reference(r.reference), sums(classes, 0), probability(classes) {}
    void clear() { sums.clear(); }
    void add(const Sampler<T, Lanes>&, const Draw<T>& draw) {
      const auto link = softmax(draw.utility, classes, draw.valid, probability.get());
      for (int64_t k = 0; k < classes; ++k) sums.sum(k) += exp(link.log_probability(draw.utility[k]) - reference[k]);
    }
    void collapse(int64_t /*samples*/, typename Lanes::Total* totals) { sums.collapse(totals); }
  };
};

// Mean and squared distances from it of p_k, and the sum of the entropy. The totals are the
// means, the sums of squared distances, the entropy and the number of samples.
template <class T, class Lanes>
struct Statistics {
  using V = Vec<T>;
  using X = typename Lanes::Total;
  int64_t classes;

  explicit Statistics(const Head<T>& head) : classes(head.classes) {}
  int64_t totals() const { return 2 * classes + 2; }

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

  // Sums of p_k - shift_k, of (p_k - shift_k)^2 and of the entropy. The shift is the mean of the
  // chunk's first draw: near enough to the mean to keep the variance from cancelling.
  struct State {
    int64_t classes;
    bool has_shift = false;
    ClassSums<T, Lanes> sums;
    Buffer<V> shift, probability;

    explicit State(const Statistics& r)
        : classes(r.classes), sums(2 * classes + 1, 0), shift(classes), probability(classes) {}
    void clear() {
      sums.clear();
      has_shift = false;
    }
    void add(const Sampler<T, Lanes>&, const Draw<T>& draw) {
      const auto link = softmax<true>(draw.utility, classes, draw.valid, probability.get());
      if (!has_shift)
        for (int64_t k = 0; k < classes; ++k) shift[k] = Lanes::mean(probability[k] * link.inverse_sum, draw.valid);
      has_shift = true;
      for (int64_t k = 0; k < classes; ++k) {
        // not fused, so that equal probabilities have a variance of exactly 0
        const V distance = probability[k] * link.inverse_sum - shift[k];
        const V difference = draw.all_valid ? distance : lane<V>::select(draw.valid, distance, V{});
        sums.sum(k) += difference;
        sums.sum(classes + k) = lane<V>::fmadd(difference, difference, sums.sum(classes + k));
      }
      sums.sum(2 * classes) += link.entropy;
    }
    void collapse(int64_t samples, X* totals) {
      sums.collapse(totals);
      const X count = splat<X>(static_cast<typename lane<X>::Scalar>(samples));
      for (int64_t k = 0; k < classes; ++k) {
        const X difference = totals[k];
        const X squares = lane<X>::fmadd(-difference, difference / count, totals[classes + k]);
        totals[k] = Lanes::total(shift[k]) + difference / count;
        totals[classes + k] = lane<X>::select(squares < X{}, X{}, squares);
      }
      totals[2 * classes + 1] = count;
    }
  };
};

// Gradient sums for a given gradient of the sampled utilities.
template <class T, class Lanes>
struct GivenGradientSum {
  using V = Vec<T>;
  const Head<T>& head;
  const T* grad_utility;  // samples x rows x classes

  int64_t totals() const { return GradientSums<T, Lanes>::totals(head); }
  void merge(const double* later, double* sums) const { merge_sums(later, sums, totals(), 0); }

  struct State {
    const GivenGradientSum& reduction;
    GradientSums<T, Lanes> sums;
    Buffer<V> delta;

    explicit State(const GivenGradientSum& r) : reduction(r), sums(r.head), delta(r.head.classes) {}
    void clear() { sums.clear(); }
    void add(const Sampler<T, Lanes>& sampler, const Draw<T>& draw) {
      const V minus_infinity = splat<V>(-std::numeric_limits<T>::infinity());
      for (int64_t k = 0; k < reduction.head.classes; ++k) {
        const V gradient = sampler.lanes().gather(reduction.head, draw.sample, k, reduction.grad_utility);
        delta[k] = lane<V>::select(draw.utility[k] != minus_infinity, gradient, V{});  // a masked class has none
      }
      sums.add(sampler, draw, delta.get(), V{});
    }
    void collapse(int64_t /*samples*/, typename Lanes::Total* totals) { sums.collapse(totals); }
  };
};

// Gradient sums for a gradient g of log p: with a_k = g_k exp(log p_sk - log p_k) / S the
// gradient of a sample's utilities is a_k - p_sk sum_j a_j.
//
// With kRelative, a_k is `weight` times the ratio exp(log p_sk - log p_k); without it, `weight`
// has the division by p_k in it.
template <class T, class Lanes, bool kRelative>
struct LogProbGradientSum {
  using V = Vec<T>;
  const Head<T>& head;
  const V* weight;
  const V* log_prob;

  int64_t totals() const { return GradientSums<T, Lanes>::totals(head); }
  void merge(const double* later, double* sums) const { merge_sums(later, sums, totals(), 0); }

  struct State {
    const LogProbGradientSum& reduction;
    GradientSums<T, Lanes> sums;
    Buffer<V> probability, delta;

    explicit State(const LogProbGradientSum& r)
        : reduction(r), sums(r.head), probability(r.head.classes), delta(r.head.classes) {}
    void clear() { sums.clear(); }
    void add(const Sampler<T, Lanes>& sampler, const Draw<T>& draw) {
      const int64_t classes = reduction.head.classes;
      const auto link = softmax(draw.utility, classes, draw.valid, probability.get());
      V sum{};
      for (int64_t k = 0; k < classes; ++k) {
        probability[k] *= link.inverse_sum;
        const V ratio = kRelative ? exp(link.log_probability(draw.utility[k]) - reduction.log_prob[k]) : probability[k];
        delta[k] = reduction.weight[k] * ratio;
        sum += delta[k];
      }
      for (int64_t k = 0; k < classes; ++k) delta[k] = lane<V>::fmadd(-probability[k], sum, delta[k]);
      sums.add(sampler, draw, delta.get(), link.max);
    }
    void collapse(int64_t /*samples*/, typename Lanes::Total* totals) { sums.collapse(totals); }
  };
};

// For the negative log-likelihood of class y: the sum of the weights w_s = p_sy (with kRelative:
// exp(log p_sy - reference)), the largest log p_sy, and the gradient sums of w_s (p_sk - [k = y]),
// which only lack the division by the sum of the weights. The totals are in this order.
template <class T, class Lanes, bool kRelative, bool kGradient>
struct LikelihoodSum {
  using V = Vec<T>;
  const Head<T>& head;
  const int64_t* target;
  V reference;

  int64_t totals() const { return 2 + (kGradient ? GradientSums<T, Lanes>::totals(head) : 0); }
  void merge(const double* later, double* sums) const {
    merge_sums(later, sums, 1, 1);
    merge_sums(later + 2, sums + 2, totals() - 2, 0);
  }

  struct State {
    const LikelihoodSum& reduction;
    ClassSums<T, Lanes> weights;
    GradientSums<T, Lanes> sums;
    Buffer<V> probability;

    explicit State(const LikelihoodSum& r) : reduction(r), weights(1, 1), sums(r.head), probability(r.head.classes) {}
    void clear() {
      weights.clear();
      if constexpr (kGradient) sums.clear();
    }
    void add(const Sampler<T, Lanes>& sampler, const Draw<T>& draw) {
      const int64_t classes = reduction.head.classes;
      const auto link = softmax(draw.utility, classes, draw.valid, probability.get());
      const V log_likelihood = link.log_probability(sampler.lanes().at_target(draw.utility, reduction.target));
      const V weight = kRelative ? exp(log_likelihood - reduction.reference)
                                 : sampler.lanes().at_target(probability.get(), reduction.target) * link.inverse_sum;
      weights.sum(0) += weight;
      weights.maximum(0) = lane<V>::maximum(weights.maximum(0), log_likelihood);
      if constexpr (kGradient) {
        const V scale = weight * link.inverse_sum;
        for (int64_t k = 0; k < classes; ++k) probability[k] *= scale;
        sampler.lanes().subtract_at_target(probability.get(), reduction.target, weight);
        sums.add(sampler, draw, probability.get(), link.max);
      }
    }
    void collapse(int64_t /*samples*/, typename Lanes::Total* totals) {
      weights.collapse(totals);
      if constexpr (kGradient) sums.collapse(totals + 2);
    }
  };
};

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
