// The gradients of a row's parameters, summed over its samples.
//
// With delta the gradient of a sample's utilities, those of the parameters are
//   d loc = sum delta / T              d factor_kr = f_r sum delta_k eta_r / T
//   d scale = sum delta eps / T        d f_r = sum_k factor_kr sum delta_k eta_r / T
//   d T = -sum delta utility / T
// The utility being linear in loc, scale and factor, the last one is made of the sums of the others.
#pragma once

#include "reductions.cuh"

namespace hetnet {
namespace cuda {

// Where gradients go. What is summed over rows or tiles is kept for each of them first.
template <class T>
struct DeviceGradient {
  HeadGradient<T> grad;
  T* factor_parts;       // [part][class][factor], where the factor is shared
  bool adds_to_parts;    // to those of the batches before
  T* temperature_parts;  // [tile][row of the batch]
  T* scale_parts;        // [tile][row of the batch][factor]
};

// kShares: teams share sums of the factor's gradient.
template <class T, int kSamples, Purpose kPurpose, bool kShares>
class GradientSums {
 public:
  HETNET_DEVICE explicit GradientSums(Sampler<T, kSamples, kPurpose>& sampler) : sampler_(sampler) {}

  HETNET_DEVICE void clear() {
    fill(loc_, T(0));
    fill(scale_, T(0));
    if (!leads()) return;
    Quad<T>* const factor = own_factor();
#pragma unroll 1
    for (int64_t r = 0; r < sampler_.head.factors; ++r) factor[r * sampler_.team.plan.team] = Quad<T>{};
  }

  // All threads of the block call it.
  HETNET_DEVICE void add(const Draw<T, kSamples>& draw, const T (&delta)[kSamples][4]) {
    for (int j = 0; j < kClasses; ++j) {
      T loc = T(0), scale = T(0);
      for (int s = 0; s < kSamples; ++s) {
        loc += delta[s][j];
        scale = lane<T>::fmadd(delta[s][j], draw.eps[s][j], scale);
      }
      loc_[j] += loc;
      scale_[j] += scale;
    }
    if constexpr (kShares)
      add_shared_products(draw, delta);
    else
      add_own_products(draw, delta);
  }

  // Stores the row's gradients, `by` times the sums, and adds those of a shared factor to the part's.
  // Where `by` is 0 they are 0. `origin` may be subtracted from the team's utilities: where the sum of delta
  // over all classes is 0, that makes no difference but to rounding. All threads of the block call it.
  HETNET_DEVICE void store(T by, T origin, const DeviceGradient<T>& out, int64_t part, bool first_of_part) {
    const Head<T>& head = sampler_.head;
    const bool live = sampler_.live();
    by = live ? by / head.temperature : T(0);
    const bool writes = live && sampler_.team.team == 0;
    store_temperature(by, origin, writes, out);
    for (int j = 0; j < kClasses; ++j) {
      const T loc = times(by, sum_over_teams(sampler_.team, sampler_.merge(), loc_[j]));
      const T scale = times(by, sum_over_teams(sampler_.team, sampler_.merge(), scale_[j]));
      if (!writes || !sampler_.has(j)) continue;
      out.grad.loc[sampler_.at(j)] = loc;
      out.grad.scale[sampler_.at(j)] = scale;
    }

    if (head.factors == 0) return;
    if (head.factor_scale) store_factor_scale(by, writes, out);
    __syncthreads();  // other threads read the factor's sums
    if (head.shared_factor)
      add_to_part(by, out.factor_parts + part * head.classes * head.factors, first_of_part && !out.adds_to_parts);
    else if (live)
      store_factor(by, out.grad.factor + sampler_.row() * head.classes * head.factors);
    __syncthreads();
  }

 private:
  // Whether the team has a sum of the factor's gradient to itself, or is the first of those that share one.
  HETNET_DEVICE bool leads() const { return member() == 0; }
  HETNET_DEVICE int member() const { return kShares ? sampler_.team.team & (sampler_.team.plan.sharing() - 1) : 0; }

  // To the team's sum of the factor's gradient.
  HETNET_DEVICE void add_own_products(const Draw<T, kSamples>& draw, const T (&delta)[kSamples][4]) {
    Quad<T>* factor = own_factor();
#pragma unroll 1
    for (int64_t r = 0; r < sampler_.head.factors; ++r) {
      Quad<T> sum = *factor;
      const Pack<T, kSamples> eta = draw.factor_noise(r);
      for (int s = 0; s < kSamples; ++s)
        for (int j = 0; j < kClasses; ++j) sum.of[j] = lane<T>::fmadd(delta[s][j], eta.of[s], sum.of[j]);
      *factor = sum;
      factor += sampler_.team.plan.team;
    }
  }

  // To the sum that teams share: each adds the products of all their samples for some of the factors, a few at a
  // time. So a sum takes a fraction of the memory, and a sample's gradients are read once for several factors.
  HETNET_DEVICE void add_shared_products(const Draw<T, kSamples>& draw, const T (&delta)[kSamples][4]) {
    constexpr int kFactors = 4;
    const int factors = static_cast<int>(sampler_.head.factors);  // few enough for shared memory
    const Team<T>& team = sampler_.team;
    const int stride = team.plan.team, member = this->member(), first_group = team.group - member;
    Quad<T>* const deltas = reinterpret_cast<Quad<T>*>(sampler_.shared() + sampler_.layout().delta) + team.lane;
    for (int s = 0; s < kSamples; ++s)
      for (int j = 0; j < kClasses; ++j) deltas[(team.group * kSamples + s) * stride].of[j] = delta[s][j];
    __syncthreads();
    Quad<T>* const sums = own_factor();
#pragma unroll 1
    for (int r = kFactors * member; r < factors; r += kFactors * team.plan.sharing()) {
      const auto has = [&](int i) { return r + i < factors; };
      Quad<T> sum[kFactors];
      for (int i = 0; i < kFactors; ++i)
        if (has(i)) sum[i] = sums[(r + i) * stride];
      const Quad<T>* its_delta = deltas + first_group * kSamples * stride;
      const T* its_eta = draw.eta + (r - member * factors) * kSamples;
#pragma unroll 1
      for (int of = 0; of < team.plan.sharing(); ++of) {
        Quad<T> gradient[kSamples];
        for (int s = 0; s < kSamples; ++s) gradient[s] = its_delta[s * stride];
        for (int i = 0; i < kFactors; ++i) {
          if (!has(i)) continue;
          const Pack<T, kSamples> eta = *reinterpret_cast<const Pack<T, kSamples>*>(its_eta + i * kSamples);
          for (int s = 0; s < kSamples; ++s)
            for (int j = 0; j < kClasses; ++j)
              sum[i].of[j] = lane<T>::fmadd(gradient[s].of[j], eta.of[s], sum[i].of[j]);
        }
        its_delta += kSamples * stride;
        its_eta += factors * kSamples;
      }
      for (int i = 0; i < kFactors; ++i)
        if (has(i)) sums[(r + i) * stride] = sum[i];
    }
    __syncthreads();  // the others have read this step's
  }

  // Sums that count for nothing may be NaN.
  HETNET_DEVICE static T times(T by, T sum) { return by == T(0) ? T(0) : by * sum; }

  HETNET_DEVICE void store_temperature(T by, T origin, bool writes, const DeviceGradient<T>& out) {
    const Head<T>& head = sampler_.head;
    T sum = T(0);
    for (int j = 0; j < kClasses; ++j) {
      if (!sampler_.has(j) || sampler_.masked(j)) continue;
      const T loc = head.loc.data[sampler_.row() * head.loc.row_stride + sampler_.first_class() + j];
      sum = lane<T>::fmadd(loc - origin * head.temperature, loc_[j], sum);
      sum = lane<T>::fmadd(sampler_.scale(j), scale_[j], sum);
    }
    const Quad<T>* factor = sampler_.own_factor();
    const Quad<T>* factor_sum = own_factor();
    const int64_t factors = leads() ? head.factors : 0;
#pragma unroll 1
    for (int64_t r = 0; r < factors; ++r)
      for (int j = 0; j < kClasses; ++j)
        sum = lane<T>::fmadd(factor[r * sampler_.team.plan.team].of[j], factor_sum[r * sampler_.team.plan.team].of[j],
                             sum);
    T sums[1] = {sum};
    sampler_.team.reduce(sums, Sum<T>());
    const T total = sum_over_teams(sampler_.team, sampler_.merge(), sums[0]);
    if (writes && sampler_.team.lane == 0)
      out.temperature_parts[sampler_.tile_at()] = times(-by, total / head.temperature);
  }

  // The sums of the block's factors, [row][team / sharing][factor][class].
  HETNET_DEVICE T* factor_sums() const { return sampler_.factors() + sampler_.layout().gradient; }
  // Of the thread's classes; those of the next factor are a team's length further.
  HETNET_DEVICE Quad<T>* own_factor() const {
    const Team<T>& team = sampler_.team;
    const int64_t size = sampler_.head.factors * team.plan.tile_classes();
    return reinterpret_cast<Quad<T>*>(factor_sums() +
                                      (kShares ? team.group >> team.plan.log_sharing : team.group) * size) +
           team.lane;
  }

  // That of the block's row `row`.
  HETNET_DEVICE T factor_sum(int row, int64_t k, int64_t r) const {
    const Plan& plan = sampler_.team.plan;
    const int64_t size = sampler_.head.factors * plan.tile_classes();
    const int sums = kShares ? plan.teams >> plan.log_sharing : plan.teams;
    const T* first = factor_sums() + int64_t{row} * sums * size + r * plan.tile_classes() + k;
    T sum = first[0];
#pragma unroll 1
    for (int t = 1; t < sums; ++t) sum += first[t * size];
    return sum;
  }

  HETNET_DEVICE T factor_scale(int64_t row, int64_t r) const {
    return sampler_.head.factor_scale ? sampler_.head.factor_scale.data[row * sampler_.head.factor_scale.row_stride + r]
                                      : T(1);
  }

  // Calls store(first, k, r) for the tile's numbers of a factor, that of class first + k: consecutive threads, of
  // `count`, get consecutive ones.
  template <class Store>
  HETNET_DEVICE void for_each_number(int thread, int count, const Store& store) const {
    const int64_t first = int64_t{sampler_.tile()} * sampler_.team.plan.tile_classes(),
                  left = sampler_.head.classes - first;
    const int64_t classes = left < sampler_.team.plan.tile_classes() ? left : sampler_.team.plan.tile_classes();
#pragma unroll 1
    for (int64_t i = thread; i < classes * sampler_.head.factors; i += count)
      store(first, i / sampler_.head.factors, i % sampler_.head.factors);
  }

  HETNET_DEVICE void store_factor(T by, T* out) const {
    const int thread = sampler_.team.team * sampler_.team.plan.team + sampler_.team.lane,
              count = sampler_.team.plan.teams * sampler_.team.plan.team;
    for_each_number(thread, count, [&](int64_t first, int64_t k, int64_t r) {
      out[(first + k) * sampler_.head.factors + r] =
          times(by, factor_scale(sampler_.row(), r) * factor_sum(sampler_.team.row, k, r));
    });
  }

  // Adds over the block's rows, in their order.
  HETNET_DEVICE void add_to_part(T by, T* part, bool first_of_part) {
    if (sampler_.team.team == 0 && sampler_.team.lane == 0) sampler_.merge()[sampler_.team.row] = by;
    __syncthreads();
    const int64_t first_row = sampler_.first_row(), end = sampler_.batch.first_row + sampler_.batch.rows;
    for_each_number(static_cast<int>(threadIdx.x), sampler_.team.plan.threads(),
                    [&](int64_t first, int64_t k, int64_t r) {
                      T sum = T(0);
#pragma unroll 1
                      for (int row = 0; row < sampler_.team.plan.rows && first_row + row < end; ++row)
                        sum += times(sampler_.merge()[row], factor_scale(first_row + row, r) * factor_sum(row, k, r));
                      T& to = part[(first + k) * sampler_.head.factors + r];
                      to = first_of_part ? sum : to + sum;
                    });
  }

  HETNET_DEVICE void store_factor_scale(T by, bool writes, const DeviceGradient<T>& out) {
    const int64_t row = sampler_.row();
    const T* source = sampler_.head.factor.data + row * sampler_.head.factor.row_stride +
                      sampler_.first_class() * sampler_.head.factors;
#pragma unroll 1
    for (int64_t first = 0; first < sampler_.head.factors; first += kSamples) {
      T sums[kSamples];
      for (int i = 0; i < kSamples; ++i) {
        sums[i] = T(0);
        if (!leads() || first + i >= sampler_.head.factors) continue;
        const Quad<T> sum = own_factor()[(first + i) * sampler_.team.plan.team];
        for (int j = 0; j < kClasses; ++j)
          if (sampler_.has(j))
            sums[i] = lane<T>::fmadd(sum.of[j], source[j * sampler_.head.factors + first + i], sums[i]);
      }
      sampler_.team.reduce(sums, Sum<T>());
      for (int i = 0; i < kSamples; ++i) {
        const T sum = times(by, sum_over_teams(sampler_.team, sampler_.merge(), sums[i]));
        if (writes && sampler_.team.lane == 0 && first + i < sampler_.head.factors)
          out.scale_parts[sampler_.tile_at() * sampler_.head.factors + first + i] = sum;
      }
    }
  }

  Sampler<T, kSamples, kPurpose>& sampler_;
  T loc_[4], scale_[4];
};

}  // namespace cuda
}  // namespace hetnet
