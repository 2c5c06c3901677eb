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

// Adds `sums` sums and then maxima of a later chunk.
inline void merge_sums(const double* later, double* totals, int64_t sums, int64_t maxima) {
  for (int64_t i = 0; i < sums; ++i) totals[i] += later[i];
  for (int64_t i = sums; i < sums + maxima; ++i) totals[i] = later[i] > totals[i] ? later[i] : totals[i];
}

template <class V>
void fill(const Buffer<V>& vectors, int64_t count, typename lane<V>::Scalar number) {
  for (int64_t i = 0; i < count; ++i) vectors[i] = splat<V>(number);
}

// The class probabilities of a draw, by slice and vector of classes.
template <class T, class Lanes>
class Probabilities {
  using V = Vec<T>;

 public:
  explicit Probabilities(const Head<T>& head)
      : vectors_(Lanes::vectors(head.classes)), exponential_(Lanes::slices(head) * vectors_) {}

  template <bool kEntropy = false>
  void of(const Draw<T, Lanes>& draw) {
    if constexpr (Lanes::most_slices == 1)
      softmax_over_vectors<kEntropy>(draw.utility, vectors_, draw.valid, exponential_.get(), softmax_);
    else if (draw.given == nullptr)
      softmax_over_lanes<kEntropy>(draw.utility, draw.slices(), vectors_, exponential_.get(), softmax_);
    else
      of_tile<kEntropy>(draw);
  }

  HETNET_INLINE const Softmax<V, Lanes::most_slices>& softmax() const { return softmax_; }
  HETNET_INLINE V probability(int64_t s, int64_t c) const {
    return exponential_[s * vectors_ + c] * softmax_.inverse_sum[s];
  }
  // The exponentials, which may be overwritten.
  V* exponential(int64_t s = 0) const { return &exponential_[s * vectors_]; }

 private:
  template <bool kEntropy>
  void of_tile(const Draw<T, Lanes>& draw) {
    for (int64_t s = 0; s < draw.slices(); ++s) {
      softmax_.max[s] = splat<V>(draw.given->max[draw.sample + s]);
      softmax_.inverse_sum[s] = splat<V>(draw.given->inverse_sum[draw.sample + s]);
      softmax_.log_sum[s] = splat<V>(draw.given->log_sum[draw.sample + s]);
      softmax_.sum[s] = splat<V>(1) / softmax_.inverse_sum[s];
    }
    softmax_of_tile<kEntropy>(draw.utility, draw.slices(), vectors_, exponential_.get(), softmax_);
  }

  int64_t vectors_;
  Buffer<V> exponential_;
  Softmax<V, Lanes::most_slices> softmax_;
};

// Sums of p_k, and the largest log p_k.
template <class T, class Lanes>
struct ProbabilitySum {
  using V = Vec<T>;
  using L = lane<V>;
  const Head<T>& head;

  int64_t totals() const { return 2 * head.classes; }
  void merge(const double* later, double* totals) const { merge_sums(later, totals, head.classes, head.classes); }

  struct State {
    int64_t classes, vectors;
    Probabilities<T, Lanes> probabilities;
    Buffer<V> sums, maxima;

    explicit State(const ProbabilitySum& r)
        : classes(r.head.classes),
          vectors(Lanes::vectors(classes)),
          probabilities(r.head),
          sums(vectors),
          maxima(vectors) {}
    void clear() {
      fill(sums, vectors, 0);
      fill(maxima, vectors, -std::numeric_limits<T>::infinity());
    }
    void add(const Sampler<T, Lanes>&, const Draw<T, Lanes>& draw) {
      probabilities.of(draw);
      for (int64_t c = 0; c < vectors; ++c) {
        V sum{}, maximum = maxima[c];
        for (int64_t s = 0; s < draw.slices(); ++s) {
          sum += probabilities.probability(s, c);
          maximum = L::maximum(maximum, probabilities.softmax().log_probability(s, draw.utility[s * vectors + c]));
        }
        sums[c] += sum;
        maxima[c] = maximum;
      }
    }
    void collapse(int64_t /*samples*/, typename Lanes::Total* totals) {
      Lanes::class_totals(sums.get(), classes, totals);
      Lanes::class_maxima(maxima.get(), classes, totals + classes);
    }
  };
};

// Sums of exp(log p_k - reference_k).
template <class T, class Lanes>
struct RelativeProbabilitySum {
  using V = Vec<T>;
  const Head<T>& head;
  const V* reference;

  int64_t totals() const { return head.classes; }
  void merge(const double* later, double* totals) const { merge_sums(later, totals, head.classes, 0); }

  struct State {
    const V* reference;
    int64_t classes, vectors;
    Probabilities<T, Lanes> probabilities;
    Buffer<V> sums;

    explicit State(const RelativeProbabilitySum& r)
        : reference(r.reference),
          classes(r.head.classes),
          vectors(Lanes::vectors(classes)),
          probabilities(r.head),
          sums(vectors) {}
    void clear() { fill(sums, vectors, 0); }
    void add(const Sampler<T, Lanes>&, const Draw<T, Lanes>& draw) {
      probabilities.of(draw);
      for (int64_t c = 0; c < vectors; ++c) {
        V sum{};
        for (int64_t s = 0; s < draw.slices(); ++s)
          sum += exp(probabilities.softmax().log_probability(s, draw.utility[s * vectors + c]) - reference[c]);
        sums[c] += sum;
      }
    }
    void collapse(int64_t /*samples*/, typename Lanes::Total* totals) {
      Lanes::class_totals(sums.get(), classes, totals);
    }
  };
};

// Mean and squared distances from it of p_k, and the sum of the entropy. The totals are the
// means, the sums of squared distances, the entropy and the number of samples.
template <class T, class Lanes>
struct Statistics {
  using V = Vec<T>;
  using X = typename Lanes::Total;
  const Head<T>& head;

  int64_t totals() const { return 2 * head.classes + 2; }

  // Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
  // variances" (1979).
  void merge(const double* later, double* totals) const {
    const int64_t classes = head.classes;
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
    int64_t classes, vectors;
    bool has_shift = false;
    Probabilities<T, Lanes> probabilities;
    Buffer<V> sums, squares, shift;
    V entropy{};

    explicit State(const Statistics& r)
        : classes(r.head.classes),
          vectors(Lanes::vectors(classes)),
          probabilities(r.head),
          sums(vectors),
          squares(vectors),
          shift(vectors) {}
    void clear() {
      fill(sums, vectors, 0);
      fill(squares, vectors, 0);
      entropy = V{};
      has_shift = false;
    }
    void add(const Sampler<T, Lanes>&, const Draw<T, Lanes>& draw) {
      probabilities.template of<true>(draw);
      const auto probability = [&](int64_t s, int64_t c) { return probabilities.probability(s, c); };
      if (!has_shift)
        for (int64_t c = 0; c < vectors; ++c)
          shift[c] = Lanes::mean_of_draw(draw.slices(), draw.valid, [&](int64_t s) { return probability(s, c); });
      has_shift = true;
      for (int64_t c = 0; c < vectors; ++c) {
        V sum{}, square{};
        for (int64_t s = 0; s < draw.slices(); ++s) {
          // not fused, so that equal probabilities have a variance of exactly 0
          const V distance = probability(s, c) - shift[c];
          const V difference = draw.all_valid ? distance : lane<V>::select(draw.valid, distance, V{});
          sum += difference;
          square = lane<V>::fmadd(difference, difference, square);
        }
        sums[c] += sum;
        squares[c] += square;
      }
      for (int64_t s = 0; s < draw.slices(); ++s) entropy += probabilities.softmax().entropy[s];
    }
    void collapse(int64_t samples, X* totals) {
      Lanes::class_totals(sums.get(), classes, totals);
      Lanes::class_totals(squares.get(), classes, totals + classes);
      const X count = splat<X>(static_cast<typename lane<X>::Scalar>(samples));
      for (int64_t k = 0; k < classes; ++k) {
        const X difference = totals[k];
        const X rest = lane<X>::fmadd(-difference, difference / count, totals[classes + k]);
        totals[k] = Lanes::at(shift.get(), k) + difference / count;
        totals[classes + k] = lane<X>::select(rest < X{}, X{}, rest);
      }
      totals[2 * classes] = Lanes::sample_total(entropy);
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
    int64_t vectors;
    GradientSums<T, Lanes> sums;
    Buffer<V> delta;

    explicit State(const GivenGradientSum& r)
        : reduction(r), vectors(Lanes::vectors(r.head.classes)), sums(r.head), delta(Lanes::slices(r.head) * vectors) {}
    void clear() { sums.clear(); }
    void add(const Sampler<T, Lanes>& sampler, const Draw<T, Lanes>& draw) {
      const V minus_infinity = splat<V>(-std::numeric_limits<T>::infinity());
      sampler.lanes().gather(reduction.head, draw.sample, draw.slices(), reduction.grad_utility, delta.get());
      // A masked class has no gradient, and a lane that stands for no sample none either.
      for (int64_t i = 0; i < draw.slices() * vectors; ++i)
        delta[i] = lane<V>::select((draw.utility[i] != minus_infinity) & draw.valid, delta[i], V{});
      const V origin[Lanes::most_slices] = {};
      V weight[Lanes::most_slices];
      for (int64_t s = 0; s < draw.slices(); ++s) weight[s] = splat<V>(1);
      sums.add(draw, delta.get(), weight, origin);
    }
    void collapse(int64_t /*samples*/, typename Lanes::Total* totals) { sums.collapse(totals); }
  };
};

// Gradient sums for a gradient g of log p: with a_k = g_k exp(log p_sk - log p_k) / S the
// gradient of a sample's utilities is a_k - p_sk sum_j a_j.
//
// With kRelative, a_k is `weight` times the ratio exp(log p_sk - log p_k). Without it, `weight` has the
// division by p_k in it: a_k is w_k p_sk, and the gradient p_sk (w_k - sum_j a_j).
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
    int64_t vectors;
    Probabilities<T, Lanes> probabilities;
    GradientSums<T, Lanes> sums;
    Buffer<V> part;

    explicit State(const LogProbGradientSum& r)
        : reduction(r),
          vectors(Lanes::vectors(r.head.classes)),
          probabilities(r.head),
          sums(r.head),
          part(kRelative ? Lanes::slices(r.head) * vectors : 0) {}
    void clear() { sums.clear(); }
    void add(const Sampler<T, Lanes>&, const Draw<T, Lanes>& draw) {
      probabilities.of(draw);
      const auto& softmax = probabilities.softmax();
      V total[Lanes::most_slices];
      for (int64_t s = 0; s < draw.slices(); ++s) {
        const V* exponential = probabilities.exponential(s);
        total[s] = sum_in_fours<V>(vectors, [&](int64_t c) {
          if constexpr (kRelative) {
            const V log_probability = softmax.log_probability(s, draw.utility[s * vectors + c]);
            return part[s * vectors + c] = reduction.weight[c] * exp(log_probability - reduction.log_prob[c]);
          } else {
            return reduction.weight[c] * exponential[c];
          }
        });
        if constexpr (!kRelative) total[s] *= softmax.inverse_sum[s];
      }
      if (draw.given == nullptr)
        Lanes::sum_over_classes(total, draw.slices());
      else
        for (int64_t s = 0; s < draw.slices(); ++s) total[s] = splat<V>(draw.given->weight[draw.sample + s]);
      V weight[Lanes::most_slices];
      for (int64_t s = 0; s < draw.slices(); ++s) {
        V* gradient = probabilities.exponential(s);
        weight[s] = kRelative ? splat<V>(1) : softmax.inverse_sum[s];
        for (int64_t c = 0; c < vectors; ++c)
          gradient[c] = kRelative ? part[s * vectors + c] - gradient[c] * softmax.inverse_sum[s] * total[s]
                                  : gradient[c] * (reduction.weight[c] - total[s]);
      }
      sums.add(draw, probabilities.exponential(), weight, softmax.max);
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
    int64_t vectors;
    Probabilities<T, Lanes> probabilities;
    GradientSums<T, Lanes> sums;
    V weight_sum, largest;

    explicit State(const LikelihoodSum& r)
        : reduction(r), vectors(Lanes::vectors(r.head.classes)), probabilities(r.head), sums(r.head) {}
    void clear() {
      weight_sum = V{};
      largest = splat<V>(-std::numeric_limits<T>::infinity());
      if constexpr (kGradient) sums.clear();
    }
    void add(const Sampler<T, Lanes>& sampler, const Draw<T, Lanes>& draw) {
      probabilities.of(draw);
      const auto& softmax = probabilities.softmax();
      const Lanes& lanes = sampler.lanes();
      V draw_sum{}, gradient_weight[Lanes::most_slices];
      for (int64_t s = 0; s < draw.slices(); ++s) {
        V* exponential = probabilities.exponential(s);
        V weight;
        if (draw.given != nullptr) {
          weight = splat<V>(draw.given->weight[draw.sample + s]);
        } else {
          const V target_utility = lanes.at_target(draw.utility + s * vectors, reduction.target);
          const V log_likelihood = softmax.log_probability(s, target_utility);
          weight = kRelative ? exp(log_likelihood - reduction.reference)
                             : lanes.at_target(exponential, reduction.target) * softmax.inverse_sum[s];
          largest = lane<V>::maximum(largest, log_likelihood);
        }
        draw_sum += weight;
        if constexpr (kGradient) {
          // p_sk - [k = y] is e_sk - [k = y] sum_j e_sj over the sum
          gradient_weight[s] = weight * softmax.inverse_sum[s];
          lanes.subtract_at_target(reduction.head, exponential, reduction.target, softmax.sum[s]);
        }
      }
      weight_sum += draw_sum;
      if constexpr (kGradient) sums.add(draw, probabilities.exponential(), gradient_weight, softmax.max);
    }
    void collapse(int64_t /*samples*/, typename Lanes::Total* totals) {
      totals[0] = Lanes::sample_total(weight_sum);
      totals[1] = Lanes::sample_maximum(largest);
      if constexpr (kGradient) sums.collapse(totals + 2);
    }
  };
};

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
