// The kernels for heads with so many classes that a row's no longer fit the cache: the classes are
// worked on in tiles, and the softmax is built up over them.
//
// A first sweep over the tiles of a row finds, for each sample, what takes all classes to know: the
// softmax's normalizer, in the manner of Milakov and Gimelshein, "Online normalizer calculation for
// softmax" (2018). A second sweep draws the same noise again and does to each tile what groups.h does
// to a whole head. So scratch memory holds a tile and four numbers a sample.
#pragma once

#include "groups.h"

namespace hetnet {
namespace HETNET_CPU_NAMESPACE {

// Numbers of a row's parameters and of its gradients that may be held at a time.
constexpr int64_t kMostTileNumbers = 32768;

template <class T>
int64_t tile_classes(const Head<T>& head) {
  const int64_t most = kMostTileNumbers / (head.factors + 8) / 64 * 64;
  return most < 64 ? 64 : most;
}

template <class T>
bool takes_tiles(const Head<T>& head) {
  return !head.cholesky && head.classes >= 2 * tile_classes(head);
}

template <class T>
int64_t tile_count(const Head<T>& head) {
  return (head.classes + tile_classes(head) - 1) / tile_classes(head);
}

template <class T>
Head<T> tile_of(const Head<T>& head, int64_t tile) {
  Head<T> part = head;
  part.first_class = tile * tile_classes(head);
  const int64_t left = head.classes - part.first_class;
  part.classes = left < tile_classes(head) ? left : tile_classes(head);
  part.loc.data += part.first_class;
  part.scale.data += part.first_class;
  if (head.factors > 0) part.factor.data += part.first_class * head.factors;
  return part;
}

// Draws samples begin .. end-1 of a row, tile after tile. for_tile(tile, lanes) makes
// add(sample, slice, draw, probabilities), which is called for each of them.
template <class T, class ForTile>
void for_each_tile_draw(const Head<T>& head, int64_t row, int64_t begin, int64_t end, const SampleNumbers<T>* given,
                        const ForTile& for_tile) {
  using Lanes = ClassLanes<T>;
  for (int64_t t = 0; t < tile_count(head); ++t) {
    const Head<T> tile = tile_of(head, t);
    Sampler<T, Lanes> sampler(tile);
    sampler.bind(Lanes(tile, row), given);
    Probabilities<T, Lanes> probabilities(tile);
    const auto add_sample = for_tile(tile, sampler.lanes());
    for (int64_t first = begin; first < end; first += Lanes::samples_per_draw(tile)) {
      const Draw<T, Lanes> draw = sampler.draw(first);
      probabilities.of(draw);
      for (int64_t i = 0; i < draw.slices() && first + i < end; ++i) add_sample(first + i, i, draw, probabilities);
    }
  }
}

// Finds the normalizers of samples begin .. end-1 of a row. for_tile(tile, lanes) makes
// add(sample, slice, draw, exponentials, earlier, later), which may keep a number of its own:
// `earlier` and `later` rescale what it has and what it gets to a new maximum.
template <class T, class ForTile>
void normalize(const Head<T>& head, int64_t row, int64_t begin, int64_t end, const SampleNumbers<T>& numbers,
               const ForTile& for_tile) {
  T* sum = numbers.inverse_sum;  // until the end
  for (int64_t s = begin; s < end; ++s) {
    numbers.max[s] = -std::numeric_limits<T>::infinity();
    sum[s] = numbers.weight[s] = 0;
  }
  for_each_tile_draw(head, row, begin, end, static_cast<const SampleNumbers<T>*>(nullptr),
                     [&](const Head<T>& tile, const ClassLanes<T>& lanes) {
                       return [&, add = for_tile(tile, lanes)](int64_t s, int64_t i, const auto& draw,
                                                               const auto& probabilities) {
                         const T tile_max = probabilities.softmax().max[i][0];
                         const T tile_sum = probabilities.softmax().sum[i][0];
                         const bool masked = tile_sum == 0;  // all of the tile's classes
                         const T max = !masked && !(tile_max < numbers.max[s]) ? tile_max : numbers.max[s];
                         const T earlier = masked ? T(1) : exp(numbers.max[s] - max);
                         const T later = masked ? T(0) : exp(tile_max - max);
                         numbers.max[s] = max;
                         sum[s] = sum[s] * earlier + tile_sum * later;
                         add(s, i, draw, probabilities.exponential(i), earlier, later);
                       };
                     });
  for (int64_t s = begin; s < end; ++s) {
    numbers.log_sum[s] = log_or_limit(sum[s]);
    numbers.inverse_sum[s] = 1 / sum[s];
  }
}

// Rows are worked on in blocks, of which the numbers of every sample are held.
template <class T>
class RowBlock {
 public:
  int64_t first, last;  // rows

  explicit RowBlock(const Head<T>& head)
      : first(0), last(0), samples_(head.samples), numbers_(4 * most(head) * samples_) {}
  bool next(const Head<T>& head) {
    first = last;
    last = head.rows - first < most(head) ? head.rows : first + most(head);
    return first < last;
  }
  SampleNumbers<T> numbers(int64_t row) const {
    T* numbers = &numbers_[4 * (row - first) * samples_];
    return {numbers, numbers + samples_, numbers + 2 * samples_, numbers + 3 * samples_};
  }

  // Calls f(row, begin, end) for parts of the samples of each row, which threads share.
  template <class F>
  void for_samples(const F& f) const {
    const int64_t chunks = (samples_ + kChunk - 1) / kChunk;
    parallel_for((last - first) * chunks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t sample = item % chunks * kChunk;
        f(first + item / chunks, sample, samples_ - sample < kChunk ? samples_ : sample + kChunk);
      }
    });
  }

 private:
  static int64_t most(const Head<T>& head) {
    constexpr int64_t kMostNumbers = 131072;
    const int64_t rows = kMostNumbers / (4 * head.samples);
    return rows < 1 ? 1 : rows < head.rows ? rows : head.rows;
  }

  int64_t samples_;
  Buffer<T> numbers_;
};

// Calls body(t, tile, sampler, row) for every tile of rows first .. last-1; threads share them.
// `numbers(row)` are those of the row's samples.
template <class T, class Numbers, class Body>
void for_each_tile(const Head<T>& head, int64_t first, int64_t last, const Numbers& numbers, const Body& body) {
  const int64_t rows = last - first;
  parallel_for(tile_count(head) * rows, 1, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t t = begin / rows, next = (t + 1) * rows < end ? (t + 1) * rows : end;
      const Head<T> tile = tile_of(head, t);
      Sampler<T, ClassLanes<T>> sampler(tile);
      for (; begin < next; ++begin) {
        const int64_t row = first + begin - t * rows;
        const SampleNumbers<T> given = numbers(row);
        sampler.bind(ClassLanes<T>(tile, row), &given);
        body(t, tile, sampler, row);
      }
    }
  });
}

const auto keep_nothing = [](const auto&, const auto&) {
  return [](int64_t, int64_t, const auto&, const auto*, auto, auto) {};
};

template <class T>
void sample_logits_in_tiles(const Head<T>& head, T* out) {
  const auto none = [](int64_t) { return SampleNumbers<T>{}; };
  for_each_tile(head, 0, head.rows, none, [&](int64_t, const Head<T>& tile, auto& sampler, int64_t) {
    sample_logits_of_group(tile, sampler, 0, head.samples, out + tile.first_class);
  });
}

template <class T>
void log_probs_in_tiles(const Head<T>& head, T* log_probs, T* probs) {
  RowBlock<T> block(head);
  while (block.next(head)) {
    const auto numbers = [&](int64_t row) { return block.numbers(row); };
    block.for_samples(
        [&](int64_t row, int64_t begin, int64_t end) { normalize(head, row, begin, end, numbers(row), keep_nothing); });
    for_each_tile(head, block.first, block.last, numbers, [&](int64_t, const Head<T>& tile, auto& sampler, int64_t) {
      log_probs_of_group(tile, sampler, false, log_probs + tile.first_class, probs + tile.first_class);
    });
  }
}

template <class T>
void statistics_in_tiles(const Head<T>& head, T* mean, T* variance, T* entropy) {
  RowBlock<T> block(head);
  while (block.next(head)) {
    const auto numbers = [&](int64_t row) { return block.numbers(row); };
    block.for_samples(
        [&](int64_t row, int64_t begin, int64_t end) { normalize(head, row, begin, end, numbers(row), keep_nothing); });
    const int64_t rows = block.last - block.first;
    Buffer<double> parts(tile_count(head) * rows);
    for_each_tile(head, block.first, block.last, numbers,
                  [&](int64_t t, const Head<T>& tile, auto& sampler, int64_t row) {
                    parts[t * rows + row - block.first] =
                        statistics_of_group(tile, sampler, false, mean + tile.first_class, variance + tile.first_class);
                  });
    for (int64_t i = 0; i < rows; ++i) {
      double sum = 0;
      for (int64_t t = 0; t < tile_count(head); ++t) sum += parts[t * rows + i];
      entropy[block.first + i] = static_cast<T>(sum);
    }
  }
}

// Gradients by tiles. What several tiles or rows share is summed in their order.
template <class T>
class TileGradients {
 public:
  TileGradients(const Head<T>& head, const HeadGradient<T>& grad) : head_(head), grad_(grad) {
    if (head.shared_factor)
      for (int64_t i = 0; i < head.classes * head.factors; ++i) grad.factor[i] = 0;
  }
  ~TileGradients() { *grad_.temperature = static_cast<T>(temperature_); }

  // Calls body(tile, sampler, row, grad, shared) as reduce_gradient does, for rows first .. last-1.
  template <class Numbers, class Body>
  void add(int64_t first, int64_t last, const Numbers& numbers, const Body& body) {
    const int64_t tiles = tile_count(head_), rows = last - first, factors = head_.factors;
    if (rows == 0) return;
    const int64_t scaled = head_.factor_scale ? factors : 0;
    Buffer<double> temperature(tiles * rows);
    Buffer<T> factor_scale(tiles * rows * scaled);
    // A tile of a shared factor belongs to one thread, which takes the rows in their order.
    const int64_t rows_each = head_.shared_factor ? rows : 1;
    parallel_for(tiles * rows / rows_each, 1, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t t = item * rows_each / rows, from = first + item * rows_each % rows;
        const Head<T> tile = tile_of(head_, t);
        Sampler<T, ClassLanes<T>> sampler(tile);
        const int64_t size = GradientSums<T, ClassLanes<T>>::shared_size(tile);
        Buffer<double> shared(size);
        for (int64_t i = 0; i < size; ++i) shared[i] = 0;
        HeadGradient<T> grad = grad_;
        grad.loc += tile.first_class;
        grad.scale += tile.first_class;
        grad.factor += tile.first_class * factors;
        grad.factor_scale = factor_scale.get() + (t * rows - first) * scaled;
        for (int64_t row = from; row < from + rows_each; ++row) {
          const SampleNumbers<T> given = numbers(row);
          sampler.bind(ClassLanes<T>(tile, row), &given);
          shared[size - 1] = 0;
          body(tile, sampler, row, grad, shared.get());
          temperature[t * rows + row - first] = shared[size - 1];
        }
        for (int64_t i = 0; i + 1 < size; ++i) grad.factor[i] += static_cast<T>(shared[i]);
      }
    });
    for (int64_t i = 0; i < tiles * rows; ++i) temperature_ += temperature[i];
    for (int64_t i = 0; i < rows * scaled; ++i) {
      double sum = 0;
      for (int64_t t = 0; t < tiles; ++t) sum += factor_scale[t * rows * scaled + i];
      grad_.factor_scale[first * scaled + i] = static_cast<T>(sum);
    }
  }

 private:
  const Head<T>& head_;
  const HeadGradient<T>& grad_;
  double temperature_ = 0;
};

template <class T>
void sample_logits_backward_in_tiles(const Head<T>& head, const T* grad_out, const HeadGradient<T>& grad) {
  const auto none = [](int64_t) { return SampleNumbers<T>{}; };
  TileGradients<T>(head, grad)
      .add(0, head.rows, none,
           [&](const Head<T>& tile, auto& sampler, int64_t, const HeadGradient<T>& tile_grad, double* shared) {
             sample_logits_backward_of_group(tile, sampler, false, grad_out + tile.first_class, tile_grad, shared);
           });
}

// The sum over all classes that the gradient of a sample's log-probabilities takes, as normalize adds
// it up over the tiles.
template <class T>
struct WeightedExponentials {
  const SampleNumbers<T>& numbers;
  int64_t vectors;
  LogProbWeights<T, ClassLanes<T>> weights;

  void operator()(int64_t sample, int64_t, const Draw<T, ClassLanes<T>>&, const Vec<T>* exponential, T earlier,
                  T later) const {
    const Vec<T> sum = sum_in_fours<Vec<T>>(vectors, [&](int64_t c) { return exponential[c] * weights.weight[c]; });
    numbers.weight[sample] = numbers.weight[sample] * earlier + lane<Vec<T>>::sum(sum) * later;
  }
};

// The same where the weights are those of ratios.
template <class T>
struct WeightedRatios {
  const SampleNumbers<T>& numbers;
  int64_t vectors;
  LogProbWeights<T, ClassLanes<T>> weights;

  template <class P>
  void operator()(int64_t sample, int64_t slice, const Draw<T, ClassLanes<T>>& draw, const P& probabilities) const {
    const Vec<T>* utility = draw.utility + slice * vectors;
    const Vec<T> sum = sum_in_fours<Vec<T>>(vectors, [&](int64_t c) {
      return weights.weight[c] * exp(probabilities.softmax().log_probability(slice, utility[c]) - weights.log_prob[c]);
    });
    numbers.weight[sample] += lane<Vec<T>>::sum(sum);
  }
};

template <class T>
class LogProbsBackwardInTiles {
  using Lanes = ClassLanes<T>;

 public:
  LogProbsBackwardInTiles(const Head<T>& head, const T* grad_out, const T* log_probs, const T* probs,
                          const HeadGradient<T>& grad)
      : head_(head), grad_out_(grad_out), log_probs_(log_probs), probs_(probs), grad_(grad) {}

  void run() {
    TileGradients<T> gradients(head_, grad_);
    RowBlock<T> block(head_);
    while (block.next(head_)) {
      const auto numbers = [&](int64_t row) { return block.numbers(row); };
      block.for_samples([&](int64_t row, int64_t begin, int64_t end) { find_sums(row, begin, end, numbers(row)); });
      // Ratios are taken relative to their own sums, which wait in the place of the gradient.
      for_each_tile(head_, block.first, block.last, numbers,
                    [&](int64_t, const Head<T>& tile, auto& sampler, int64_t row) {
                      if (underflows(row)) find_ratio_sums(tile, sampler, row);
                    });
      block.for_samples([&](int64_t row, int64_t begin, int64_t end) {
        if (underflows(row)) find_relative_sums(row, begin, end, numbers(row));
      });
      gradients.add(block.first, block.last, numbers,
                    [&](const Head<T>& tile, auto& sampler, int64_t row, const HeadGradient<T>& grad, double* shared) {
                      LogProbWeights<T, Lanes> weights = weights_of(tile, sampler.lanes());
                      if (underflows(row)) {
                        make_relative(tile, row, weights);
                        add<true>(tile, sampler, weights, grad, shared);
                      } else {
                        add<false>(tile, sampler, weights, grad, shared);
                      }
                    });
    }
  }

 private:
  LogProbWeights<T, Lanes> weights_of(const Head<T>& tile, const Lanes& lanes) const {
    const int64_t k = tile.first_class;
    return LogProbWeights<T, Lanes>(tile, lanes, grad_out_ + k, log_probs_ + k, probs_ + k);
  }
  T* ratio_sums(const Head<T>& tile, int64_t row) const { return grad_.loc + row * head_.classes + tile.first_class; }
  void make_relative(const Head<T>& tile, int64_t row, LogProbWeights<T, Lanes>& weights) const {
    const T* sums = ratio_sums(tile, row);
    weights.make_relative(tile.classes, [&](int64_t k) { return sums[k]; });
  }

  bool underflows(int64_t row) const {
    const T* log_probs = log_probs_ + row * head_.classes;
    for (int64_t k = 0; k < head_.classes; ++k)
      if (log_probs[k] < kSmallestLogProbability && log_probs[k] > -std::numeric_limits<T>::infinity()) return true;
    return false;
  }

  void find_sums(int64_t row, int64_t begin, int64_t end, const SampleNumbers<T>& numbers) const {
    normalize(head_, row, begin, end, numbers, [&](const Head<T>& tile, const Lanes& lanes) {
      return WeightedExponentials<T>{numbers, Lanes::vectors(tile.classes), weights_of(tile, lanes)};
    });
    for (int64_t s = begin; s < end; ++s) numbers.weight[s] *= numbers.inverse_sum[s];
  }

  void find_ratio_sums(const Head<T>& tile, Sampler<T, Lanes>& sampler, int64_t row) const {
    const LogProbWeights<T, Lanes> weights = weights_of(tile, sampler.lanes());
    Buffer<double> sums(tile.classes);
    const RelativeProbabilitySum<T, Lanes> ratios{tile, weights.log_prob.get()};
    reduce_samples(tile, sampler, ratios, false, sums.get());
    T* out = ratio_sums(tile, row);
    for (int64_t k = 0; k < tile.classes; ++k) out[k] = static_cast<T>(sums[k]);
  }

  void find_relative_sums(int64_t row, int64_t begin, int64_t end, const SampleNumbers<T>& numbers) const {
    for (int64_t s = begin; s < end; ++s) numbers.weight[s] = 0;
    for_each_tile_draw(head_, row, begin, end, &numbers, [&](const Head<T>& tile, const Lanes& lanes) {
      LogProbWeights<T, Lanes> weights = weights_of(tile, lanes);
      make_relative(tile, row, weights);
      return WeightedRatios<T>{numbers, Lanes::vectors(tile.classes), std::move(weights)};
    });
  }

  template <bool kRelative>
  static void add(const Head<T>& tile, Sampler<T, Lanes>& sampler, const LogProbWeights<T, Lanes>& weights,
                  const HeadGradient<T>& grad, double* shared) {
    const LogProbGradientSum<T, Lanes, kRelative> reduction{tile, weights.weight.get(), weights.log_prob.get()};
    Buffer<double> sums(reduction.totals());
    reduce_samples(tile, sampler, reduction, false, sums.get());
    GradientSums<T, Lanes>::store(tile, sampler, sums.get(), 1.0, grad, shared);
  }

  const Head<T>& head_;
  const T *grad_out_, *log_probs_, *probs_;
  const HeadGradient<T>& grad_;
};

// Keeps the utility of the target, which is in one of the tiles.
template <class T>
struct TargetUtility {
  const SampleNumbers<T>& numbers;
  int64_t target, vectors;  // the target counts from the tile's first class
  bool in_tile;

  void operator()(int64_t sample, int64_t slice, const Draw<T, ClassLanes<T>>& draw, const Vec<T>*, T, T) const {
    if (in_tile) numbers.weight[sample] = ClassLanes<T>::at(draw.utility + slice * vectors, target);
  }
};

// From the target's utilities to the weights of the samples, exp(log p_sy - reference). Returns their
// sum and the reference.
template <class T>
std::pair<double, double> weigh_samples(const SampleNumbers<T>& numbers, int64_t samples) {
  const T minus_infinity = -std::numeric_limits<T>::infinity();
  T largest = minus_infinity;
  for (int64_t s = 0; s < samples; ++s) {
    numbers.weight[s] += -numbers.max[s] - numbers.log_sum[s];
    if (numbers.weight[s] > largest) largest = numbers.weight[s];
  }
  const T reference = largest < kSmallestLogProbability && largest > minus_infinity ? largest : T(0);
  double sum = 0;
  for (int64_t s = 0; s < samples; ++s) {
    numbers.weight[s] = exp(numbers.weight[s] - reference);
    sum += numbers.weight[s];
  }
  return {sum, reference};
}

template <class T>
void nll_in_tiles(const Head<T>& head, const NllTarget<T>& target, T* loss, const HeadGradient<T>* grad) {
  using Lanes = ClassLanes<T>;
  using Reduction = LikelihoodSum<T, Lanes, false, true>;
  std::optional<TileGradients<T>> gradients;
  if (grad) gradients.emplace(head, *grad);
  RowBlock<T> block(head);
  while (block.next(head)) {
    const auto numbers = [&](int64_t row) { return block.numbers(row); };
    block.for_samples([&](int64_t row, int64_t begin, int64_t end) {
      const SampleNumbers<T> of_row = numbers(row);
      normalize(head, row, begin, end, of_row, [&](const Head<T>& tile, const Lanes&) {
        const int64_t k = target.classes[row] - tile.first_class;
        return TargetUtility<T>{of_row, k, Lanes::vectors(tile.classes), k >= 0 && k < tile.classes};
      });
    });
    Buffer<double> factor(block.last - block.first);
    for (int64_t row = block.first; row < block.last; ++row) {
      const auto [sum, reference] = weigh_samples(numbers(row), head.samples);
      const double weight = target.row_weight[row];
      const double log_likelihood = reference + log_or_limit(sum / static_cast<double>(head.samples));
      // Rows of weight 0 count for nothing, not even as NaN.
      loss[row] = weight == 0 ? T(0) : static_cast<T>(-weight * log_likelihood);
      factor[row - block.first] = weight == 0 || sum == 0 ? 0 : weight / sum;
    }
    if (!grad) continue;
    gradients->add(block.first, block.last, numbers,
                   [&](const Head<T>& tile, auto& sampler, int64_t row, const HeadGradient<T>& part, double* shared) {
                     const Reduction reduction{tile, target.classes, Vec<T>{}};
                     Buffer<double> totals(reduction.totals());
                     reduce_samples(tile, sampler, reduction, false, totals.get());
                     if (target.row_weight[row] == 0)
                       for (int64_t i = 2; i < reduction.totals(); ++i) totals[i] = 0;
                     GradientSums<T, Lanes>::store(tile, sampler, &totals[2], factor[row - block.first], part, shared);
                   });
  }
}

}  // namespace HETNET_CPU_NAMESPACE
}  // namespace hetnet
