// The backward of the covariance: from the gradient of the utilities to that of the head's
// parameters, summed over the samples.
#pragma once

#include "class_covariance.h"

namespace hetnet {
namespace HETNET_CPU_NAMESPACE {

// Draws that wait until the product of their gradients with their noise is worth a pass over
// the factor's gradient.
constexpr int64_t kPendingDraws = 8;

// A gradient times a parameter. A gradient of 0 stays 0, whatever the parameter of a row that
// does not count.
template <class X>
HETNET_INLINE X times(X gradient, X parameter) {
  return lane<X>::select(gradient == X{}, X{}, gradient * parameter);
}

// The sum over samples of delta_k eta_r, a matrix of classes x factors for each row: of the
// gradient of utilities with the noise of the factors. With the factor scale f it gives the
// gradients of both: f_r times it, and sum_k F_kr times it.
template <class T, class Lanes>
class OuterProduct;

// The sum where classes lie along the lanes, and its totals: row-major.
template <class T>
class ClassOuterProduct {
  using V = Vec<T>;
  static constexpr int64_t kWidth = lane<V>::width;

 public:
  ClassOuterProduct(int64_t classes, int64_t factors)
      : classes_(classes),
        factors_(factors),
        vectors_(factors > 0 ? ClassLanes<T>::vectors(classes) : 0),
        sum_(vectors_ * factors) {}

  int64_t vectors() const { return vectors_; }

  void clear() {
    for (int64_t i = 0; i < vectors_ * factors_; ++i) sum_[i] = V{};
  }

  // Adds delta(draw, sample, vector) times the number eta(draw, sample, factor).
  template <class Delta, class Eta>
  void add(int64_t draws, int64_t samples, const Delta& delta, const Eta& eta) {
    for_blocks<2>(vectors_, [&](int64_t c, auto vectors) {
      constexpr int kVectors = decltype(vectors)::value;
      for_blocks<kBlock / kVectors>(factors_, [&](int64_t r, auto factors) {
        constexpr int kFactors = decltype(factors)::value;
        V sum[kVectors][kFactors] = {};
        for (int64_t d = 0; d < draws; ++d)
          for (int64_t s = 0; s < samples; ++s) {
            V gradient[kVectors];
            HETNET_UNROLL
            for (int i = 0; i < kVectors; ++i) gradient[i] = delta(d, s, c + i);
            HETNET_UNROLL
            for (int j = 0; j < kFactors; ++j) {
              const V normal = splat<V>(eta(d, s, r + j));
              HETNET_UNROLL
              for (int i = 0; i < kVectors; ++i) sum[i][j] = lane<V>::fmadd(gradient[i], normal, sum[i][j]);
            }
          }
        HETNET_UNROLL
        for (int i = 0; i < kVectors; ++i) {
          HETNET_UNROLL
          for (int j = 0; j < kFactors; ++j) sum_[(c + i) * factors_ + r + j] += sum[i][j];
        }
      });
    });
  }

  void finish(double* totals) const {
    // Whole vectors are stored. What they hold beyond the last factor lands in the next class's first
    // ones, which are stored later: the last factors go first.
    for (int64_t c = 0; c < vectors_; ++c)
      for (int64_t r = (factors_ - 1) / kWidth * kWidth; r >= 0; r -= kWidth) {
        V square[kWidth] = {};
        for (int64_t i = 0; i < kWidth && r + i < factors_; ++i) square[i] = sum_[c * factors_ + r + i];
        lane<V>::transpose(square);
        for (int64_t l = 0; l < kWidth; ++l) {
          const int64_t at = (c * kWidth + l) * factors_ + r, room = classes_ * factors_ - at;
          if (room >= kWidth)
            store_doubles(totals + at, square[l]);
          else
            for (int64_t i = 0; i < room; ++i) totals[at + i] = square[l][i];
        }
      }
  }

  // Stores the gradients of the factor and its scale, `by` times those of the totals. The gradient
  // of a factor that all rows share is added to `shared`.
  static void store(const Head<T>& head, int64_t row, const double* totals, double by, const HeadGradient<T>& grad,
                    double* shared) {
    const int64_t size = head.classes * head.factors;
    if (head.factor_scale) {
      Buffer<double> scaled(size);
      store_factor_scale(head, row, totals, by, scaled.get(), grad);
      add_or_store(head, row, scaled.get(), by, grad, shared);
    } else {
      add_or_store(head, row, totals, by, grad, shared);
    }
  }

 private:
  static void add_or_store(const Head<T>& head, int64_t row, const double* totals, double by,
                           const HeadGradient<T>& grad, double* shared) {
    const int64_t size = head.classes * head.factors;
    if (head.shared_factor) {
      for (int64_t i = 0; i < size; ++i) shared[i] += totals[i] * by;
    } else {
      T* out = grad.factor + row * head.all_classes * head.factors;
      for (int64_t i = 0; i < size; ++i) out[i] = static_cast<T>(totals[i] * by);
    }
  }

  // Stores the gradient of the factor scale, and writes the totals times it to `scaled`.
  static void store_factor_scale(const Head<T>& head, int64_t row, const double* totals, double by, double* scaled,
                                 const HeadGradient<T>& grad) {
    const int64_t factors = head.factors;
    const T* factor = head.factor.data + row * head.factor.row_stride;
    const T* factor_scale = head.factor_scale.data + row * head.factor_scale.row_stride;
    Buffer<double> sum(factors);
    for (int64_t r = 0; r < factors; ++r) sum[r] = 0;
    for (int64_t k = 0; k < head.classes; ++k)
      for (int64_t r = 0; r < factors; ++r) {
        const double total = totals[k * factors + r];
        sum[r] += times(total, static_cast<double>(factor[k * factors + r]));
        scaled[k * factors + r] = times(total, static_cast<double>(factor_scale[r]));
      }
    for (int64_t r = 0; r < factors; ++r) grad.factor_scale[row * factors + r] = static_cast<T>(sum[r] * by);
  }

  // Stores a vector's numbers as doubles.
  static void store_doubles(double* out, V numbers) {
    using Part = typename vec_of<T>::as_many_as_doubles;
    for (std::size_t part = 0; part < sizeof(V) / sizeof(Part); ++part) {
      Part from;
      std::memcpy(&from, reinterpret_cast<const char*>(&numbers) + part * sizeof(from), sizeof(from));
      lane<DoubleVec>::store(out + part * lane<DoubleVec>::width, __builtin_convertvector(from, DoubleVec));
    }
  }

  int64_t classes_, factors_, vectors_;
  Buffer<V> sum_;  // [vector][factor]
};

template <class T>
class OuterProduct<T, ClassLanes<T>> {
  using V = Vec<T>;

 public:
  OuterProduct(int64_t classes, int64_t factors)
      : factor_vectors_(ClassLanes<T>::vectors(factors)),
        product_(classes, factors),
        eta_(ClassLanes<T>::most_slices * factor_vectors_) {}

  void clear() { product_.clear(); }

  void add(const V* delta, const V* weight, const Draw<T, ClassLanes<T>>& draw) {
    for (int64_t s = 0; s < draw.slices(); ++s)
      for (int64_t i = 0; i < factor_vectors_; ++i)
        eta_[s * factor_vectors_ + i] = lane<V>::load(draw.eta + s * draw.stride + i * lane<V>::width) * weight[s];
    const T* eta = reinterpret_cast<const T*>(eta_.get());
    product_.add(
        1, draw.slices(), [&](int64_t, int64_t s, int64_t c) { return delta[s * draw.vectors + c]; },
        [&](int64_t, int64_t s, int64_t r) { return eta[s * factor_vectors_ * lane<V>::width + r]; });
  }

  void finish(double* totals) { product_.finish(totals); }

  static void store(const Head<T>& head, const Sampler<T, ClassLanes<T>>& sampler, const double* totals, double by,
                    const HeadGradient<T>& grad, double* shared) {
    ClassOuterProduct<T>::store(head, sampler.lanes().row, totals, by, grad, shared);
  }

 private:
  int64_t factor_vectors_;
  ClassOuterProduct<T> product_;
  Buffer<V> eta_;  // [slice][factor], times the slice's weight
};

// Lanes are samples, which the sum runs over: the gradients are transposed to have classes along
// the lanes, so that the sums need none across them.
template <class T>
class OuterProduct<T, SampleLanes<T>> {
  using V = Vec<T>;
  static constexpr int kWidth = lane<V>::width;

 public:
  OuterProduct(int64_t classes, int64_t factors)
      : classes_(classes),
        factors_(factors),
        product_(classes, factors),
        delta_(product_.vectors() * kPendingDraws * kWidth),
        eta_(kPendingDraws * factors * kWidth) {}

  void clear() {
    pending_ = 0;
    product_.clear();
  }

  void add(const V* delta, const V* weight, const Draw<T, SampleLanes<T>>& draw) {
    if (factors_ == 0) return;
    for (int64_t c = 0; c < product_.vectors(); ++c) {
      V block[kWidth];
      for (int i = 0; i < kWidth; ++i) block[i] = c * kWidth + i < classes_ ? delta[c * kWidth + i] : V{};
      lane<V>::transpose(block);
      V* out = &delta_[(c * kPendingDraws + pending_) * kWidth];
      for (int i = 0; i < kWidth; ++i) out[i] = block[i];
    }
    for (int64_t r = 0; r < factors_; ++r)
      lane<V>::store(&eta_[(pending_ * factors_ + r) * kWidth], lane<V>::load(draw.eta + r * kWidth) * weight[0]);
    if (++pending_ == kPendingDraws) flush();
  }

  void finish(double* totals) {
    flush();
    product_.finish(totals);
  }

  static void store(const Head<T>& head, const Sampler<T, SampleLanes<T>>& sampler, const double* totals, double by,
                    const HeadGradient<T>& grad, double* shared) {
    ClassOuterProduct<T>::store(head, sampler.lanes().row, totals, by, grad, shared);
  }

 private:
  void flush() {
    product_.add(
        pending_, kWidth, [&](int64_t d, int64_t s, int64_t c) { return delta_[(c * kPendingDraws + d) * kWidth + s]; },
        [&](int64_t d, int64_t s, int64_t r) { return eta_[(d * factors_ + r) * kWidth + s]; });
    pending_ = 0;
  }

  int64_t classes_, factors_, pending_ = 0;
  ClassOuterProduct<T> product_;
  Buffer<V> delta_;  // [vector of classes][pending draw][sample]
  Buffer<T> eta_;    // [pending draw][factor][sample], times the sample's weight
};

// Lanes are rows: each has a sum of its own.
template <class T>
class OuterProduct<T, RowLanes<T>> {
  using V = Vec<T>;

 public:
  OuterProduct(int64_t classes, int64_t factors)
      : classes_(classes),
        factors_(factors),
        delta_(kPendingDraws * classes),
        eta_(kPendingDraws * factors),
        sum_(classes * factors) {}

  void clear() {
    pending_ = 0;
    for (int64_t i = 0; i < classes_ * factors_; ++i) sum_[i] = V{};
  }

  void add(const V* delta, const V* weight, const Draw<T, RowLanes<T>>& draw) {
    if (factors_ == 0) return;
    for (int64_t k = 0; k < classes_; ++k) delta_[k * kPendingDraws + pending_] = delta[k];
    for (int64_t r = 0; r < factors_; ++r)
      eta_[pending_ * factors_ + r] = lane<V>::load(draw.eta + r * lane<V>::width) * weight[0];
    if (++pending_ == kPendingDraws) flush();
  }

  void finish(V* totals) {
    flush();
    for (int64_t i = 0; i < classes_ * factors_; ++i) totals[i] = sum_[i];
  }

  static void store(const Head<T>& head, const Sampler<T, RowLanes<T>>& sampler, const V* totals, V by,
                    const HeadGradient<T>& grad, double* shared) {
    const int64_t classes = head.classes, factors = head.factors;
    const RowLanes<T>& lanes = sampler.lanes();
    Buffer<V> scaled(head.factor_scale ? classes * factors : 0), dot(head.factor_scale ? factors : 0);
    if (head.factor_scale) {
      for (int64_t r = 0; r < factors; ++r) {
        V sum{};
        for (int64_t k = 0; k < classes; ++k) {
          const V total = totals[k * factors + r];
          sum += times(total, sampler.factor(k, r));
          scaled[k * factors + r] = times(total, sampler.factor_scale(r));
        }
        dot[r] = sum;
      }
      lanes.put_run(grad.factor_scale, factors, factors, dot.get(), by);
      totals = scaled.get();
    }
    if (head.shared_factor)
      for (int64_t i = 0; i < classes * factors; ++i) shared[i] += lanes.sum_over_rows(totals[i] * by);
    else
      lanes.put_run(grad.factor, head.all_classes * factors, classes * factors, totals, by);
  }

 private:
  void flush() {
    for (int64_t k = 0; k < classes_; ++k)
      for_blocks(factors_, [&](int64_t first, auto count) {
        constexpr int kCount = decltype(count)::value;
        V* out = &sum_[k * factors_ + first];
        V sum[kCount];
        HETNET_UNROLL
        for (int j = 0; j < kCount; ++j) sum[j] = out[j];
        for (int64_t d = 0; d < pending_; ++d) HETNET_UNROLL
        for (int j = 0; j < kCount; ++j) {
          sum[j] = lane<V>::fmadd(delta_[k * kPendingDraws + d], eta_[d * factors_ + first + j], sum[j]);
        }
        HETNET_UNROLL
        for (int j = 0; j < kCount; ++j) out[j] = sum[j];
      });
    pending_ = 0;
  }

  int64_t classes_, factors_, pending_ = 0;
  Buffer<V> delta_;  // class, pending draw
  Buffer<V> eta_;    // pending draw, factor; times the weight
  Buffer<V> sum_;    // class, factor
};

// Sums over a chunk of samples of d(loss)/d(parameter), not yet divided by the temperature. Their
// totals are in the order loc, scale, temperature, outer product.
template <class T, class Lanes>
class GradientSums {
  using V = Vec<T>;
  using L = lane<V>;
  using Product = OuterProduct<T, Lanes>;
  using X = typename Lanes::Total;
  static constexpr int64_t kVectorsSummed = 32;  // in one sum, as a long one rounds more than a sum of sums

 public:
  explicit GradientSums(const Head<T>& head)
      : head_(head),
        vectors_(Lanes::vectors(head.classes)),
        loc_(vectors_),
        scale_(vectors_),
        product_(head.classes, head.factors) {}

  static int64_t totals(const Head<T>& head) { return 2 * head.classes + 1 + head.classes * head.factors; }

  void clear() {
    for (int64_t c = 0; c < vectors_; ++c) loc_[c] = scale_[c] = V{};
    along_utility_ = V{};
    product_.clear();
  }

  // The gradient of this draw's utilities is `delta` times weight[slice]. The temperature's gradient
  // is that of utilities from origin[slice] on: where `delta` sums to zero, an origin near the large
  // utilities spares it cancellation.
  void add(const Draw<T, Lanes>& draw, const V* __restrict delta, const V* __restrict weight,
           const V* __restrict origin) {
    V along_draw{};
    for (int64_t first = 0; first < vectors_; first += kVectorsSummed) {
      const int64_t last = first + kVectorsSummed < vectors_ ? first + kVectorsSummed : vectors_;
      V along_classes{};
      for (int64_t c = first; c < last; ++c) {
        V loc{}, scale{}, along{};
        for (int64_t s = 0; s < draw.slices(); ++s) {
          const V gradient = delta[s * vectors_ + c] * weight[s];
          loc += gradient;
          scale = L::fmadd(gradient, draw.eps(s, c), scale);
          // a masked class has utility -inf and gradient 0
          const V utility = draw.utility[s * vectors_ + c] - origin[s];
          const V finite = L::maximum(splat<V>(std::numeric_limits<T>::lowest()), utility);
          along = L::fmadd(gradient, finite, along);
        }
        along_classes += along;
        loc_[c] += loc;
        scale_[c] += scale;
      }
      along_draw += along_classes;
    }
    along_utility_ += along_draw;
    product_.add(delta, weight, draw);
  }

  void collapse(X* totals) {
    Lanes::class_totals(loc_.get(), head_.classes, totals);
    Lanes::class_totals(scale_.get(), head_.classes, totals + head_.classes);
    totals[2 * head_.classes] = Lanes::lane_total(along_utility_);
    product_.finish(totals + 2 * head_.classes + 1);
  }

  // Stores the totals of the sampler's rows, times `factor`. What several rows share is added to
  // `shared`: the factor where it is shared, then the temperature.
  static void store(const Head<T>& head, const Sampler<T, Lanes>& sampler, const X* totals, X factor,
                    const HeadGradient<T>& grad, double* shared) {
    const Lanes& lanes = sampler.lanes();
    const X by = factor / splat<X>(head.temperature);
    lanes.put_run(grad.loc, head.all_classes, head.classes, totals, by);
    lanes.put_run(grad.scale, head.all_classes, head.classes, totals + head.classes, by);
    totals += 2 * head.classes;
    shared[shared_size(head) - 1] -= lanes.sum_over_rows(totals[0] * by);
    if (head.factors > 0) Product::store(head, sampler, totals + 1, by, grad, shared);
  }

  static int64_t shared_size(const Head<T>& head) { return (head.shared_factor ? head.classes * head.factors : 0) + 1; }

 private:
  const Head<T>& head_;
  int64_t vectors_;
  Buffer<V> loc_, scale_;
  V along_utility_;
  Product product_;
};

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
