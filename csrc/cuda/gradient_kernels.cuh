// The kernels that sum gradients, and what adds up those that rows share.
#pragma once

#include "kernels.cuh"

namespace hetnet {
namespace cuda {

// The groups of rows of a part: consecutive ones.
struct Part {
  int64_t begin, end;
  HETNET_DEVICE explicit Part(int64_t groups)
      : begin(static_cast<int64_t>(blockIdx.x) * groups / gridDim.x),
        end((static_cast<int64_t>(blockIdx.x) + 1) * groups / gridDim.x) {}
};

template <class T, int kSamples, bool kShares>
__global__ void __launch_bounds__(kThreadsWithManyRegisters<T>)
    sample_logits_backward_kernel(DeviceHead<T> device_head, Plan plan, Batch batch, const T* __restrict__ grad_out,
                                  DeviceGradient<T> out) {
  Sampler<T, kSamples, kBackward> sampler(device_head, plan, batch);
  const Head<T>& head = sampler.head;
  GradientSums<T, kSamples, kBackward, kShares> gradient(sampler);
  const Part part(sampler.groups());
  for (int64_t group = part.begin; group < part.end; ++group) {
    sampler.bind(group);
    gradient.clear();
#pragma unroll 1
    for (int64_t step = 0; step < sampler.steps(); ++step) {
      Draw<T, kSamples> draw;
      sampler.draw(step, draw);
      T delta[kSamples][4];
      const T* of_sample = grad_out + draw.sample * head.rows * head.classes + sampler.at(0);
      const int live = static_cast<int>(head.samples - draw.sample);
      for (int s = 0; s < kSamples; ++s, of_sample += head.rows * head.classes)
        for (int j = 0; j < kClasses; ++j) {
          const bool counts = s < live && sampler.has(j) && !sampler.masked(j);
          delta[s][j] = counts ? of_sample[j] : T(0);
        }
      gradient.add(draw, delta);
    }
    gradient.store(T(1), T(0), out, blockIdx.x, group == part.begin);
  }
}

// One of the row's larger utilities, the same for all of its classes.
template <bool kTiles, class T, int kSamples>
HETNET_DEVICE T some_utility(Sampler<T, kSamples, kBackward>& sampler, const SampleNumbers<T>& given) {
  if constexpr (kTiles) {
    return given.max[sampler.sample_at(0)];
  } else {
    T largest[1] = {-kInfinity<T>};
    for (int j = 0; j < kClasses; ++j) largest[0] = fmax(largest[0], sampler.center(j));
    sampler.team.reduce(largest, Max<T>());
    return largest[0];
  }
}

// A tile of classes takes two launches: one for the sums of all samples' a_k over its classes, [tile][row]
// [sample], and one, that is given those of all classes, for the gradients.
enum Stage { kWhole, kTileSums, kTileGradients };

// With a_k = g_k exp(log p_sk - log p_k) / S the gradient of a sample's utilities is a_k - p_sk sum_j a_j.
template <class T, int kSamples, Stage kStage, bool kShares>
__global__ void __launch_bounds__(kThreadsWithManyRegisters<T>)
    log_probs_backward_kernel(DeviceHead<T> device_head, Plan plan, Batch batch, SampleNumbers<T> given,
                              const T* __restrict__ grad_out, const T* __restrict__ log_probs,
                              const T* __restrict__ probs, DeviceGradient<T> out) {
  Sampler<T, kSamples, kBackward> sampler(device_head, plan, batch);
  const Head<T>& head = sampler.head;
  Team<T>& team = sampler.team;
  GradientSums<T, kSamples, kBackward, kShares> gradient(sampler);
  const Part part(sampler.groups());
  for (int64_t group = part.begin; group < part.end; ++group) {
    sampler.bind(group);
    // a_k is weight_k p_sk, or weight_k exp(log p_sk - log p_k) where log p_k is so far from 0 that
    // its rounding is too much for its exponential: then the ratios' own sum divides them.
    const auto counts = [&](int j) { return sampler.has(j) && !sampler.masked(j); };
    const auto log_prob = [&](int j) { return counts(j) ? log_probs[sampler.at(j)] : T(0); };
    const auto is_relative = [&](int j) { return log_prob(j) < T(kSmallestLogProbability); };
    T weight[4];
    bool any_relative = false;
    for (int j = 0; j < kClasses; ++j) {
      weight[j] = counts(j) ? grad_out[sampler.at(j)] : T(0);
      if (is_relative(j))
        any_relative = true;
      else if (counts(j))
        weight[j] /= static_cast<T>(head.samples) * probs[sampler.at(j)];
    }
    any_relative = __syncthreads_or(any_relative);
    const auto softmax_of = [&](const Draw<T, kSamples>& draw, int64_t at) {
      return Softmax<T, kSamples>::template of<kStage != kWhole>(draw, head.samples, team, given, at);
    };
    const auto set_ratios = [&](const Draw<T, kSamples>& draw, const Softmax<T, kSamples>& softmax,
                                T(&ratio)[kSamples][4]) {
      for (int j = 0; j < kClasses; ++j) {
        if (!is_relative(j)) continue;
        for (int s = 0; s < kSamples; ++s) {
          const T log_ratio = softmax.log_probability(s, draw.utility[s][j]) - log_prob(j);
          ratio[s][j] = draw.sample + s < head.samples ? hetnet::exp(log_ratio) : T(0);
        }
      }
    };
    if (HETNET_RARE(any_relative)) {
      T sums[4] = {};
#pragma unroll 1
      for (int64_t step = 0; step < sampler.steps(); ++step) {
        Draw<T, kSamples> draw;
        sampler.draw(step, draw);
        T ratio[kSamples][4] = {};
        set_ratios(draw, softmax_of(draw, sampler.sample_at(draw.sample)), ratio);
        for (int s = 0; s < kSamples; ++s)
          for (int j = 0; j < kClasses; ++j) sums[j] += ratio[s][j];
      }
      __syncthreads();
      for (int j = 0; j < kClasses; ++j) {
        const T sum = sum_over_teams(team, sampler.merge(), sums[j]);
        if (is_relative(j)) weight[j] /= sum;
      }
    }

    if constexpr (kStage != kTileSums) gradient.clear();
#pragma unroll 1
    for (int64_t step = 0; step < sampler.steps(); ++step) {
      Draw<T, kSamples> draw;
      sampler.draw(step, draw);
      const int64_t at = sampler.sample_at(draw.sample);
      const auto softmax = softmax_of(draw, at);
      T delta[kSamples][4], sums[kSamples];
      for (int s = 0; s < kSamples; ++s)
        for (int j = 0; j < kClasses; ++j) delta[s][j] = softmax.probability(s, j);
      if (HETNET_RARE(any_relative)) set_ratios(draw, softmax, delta);
      for (int s = 0; s < kSamples; ++s) {
        for (int j = 0; j < kClasses; ++j) delta[s][j] *= weight[j];
        sums[s] = (delta[s][0] + delta[s][1]) + (delta[s][2] + delta[s][3]);
      }
      if constexpr (kStage != kTileGradients) team.reduce(sums, Sum<T>());
      for (int s = 0; s < kSamples; ++s) {
        if (kStage == kWhole || draw.sample + s >= head.samples) continue;
        if (kStage == kTileGradients) sums[s] = given.number[at + s];
        if (kStage == kTileSums && sampler.live() && team.lane == 0)
          given.number[sampler.tile() * batch.rows * head.samples + at + s] = sums[s];
      }
      if constexpr (kStage != kTileSums) {
        for (int s = 0; s < kSamples; ++s)
          for (int j = 0; j < kClasses; ++j)
            delta[s][j] = lane<T>::fmadd(-softmax.probability(s, j), sums[s], delta[s][j]);
        gradient.add(draw, delta);
      }
    }
    if constexpr (kStage != kTileSums)
      gradient.store(T(1), some_utility<kStage != kWhole>(sampler, given), out, blockIdx.x, group == part.begin);
  }
}

// The target's utilities, for all threads of the team, which all call it.
template <bool kTiles, class T, int kSamples, Purpose kPurpose>
HETNET_DEVICE void read_target(const Sampler<T, kSamples, kPurpose>& sampler, const Draw<T, kSamples>& draw,
                               int64_t own_target, int64_t step, const SampleNumbers<T>& given,
                               T (&utility)[kSamples]) {
  if constexpr (kTiles) {
    for (int s = 0; s < kSamples; ++s)
      utility[s] = draw.sample + s < sampler.head.samples ? given.number[sampler.sample_at(draw.sample + s)] : T(0);
  } else {
    const Plan& plan = sampler.team.plan;
    T* const place = sampler.shared() + sampler.layout().target +
                     ((step & 1) * plan.rows * plan.teams + sampler.team.group) * kSamples;
    for (int j = 0; j < kClasses; ++j)
      if (own_target == j)
        for (int s = 0; s < kSamples; ++s) place[s] = draw.utility[s][j];
    sampler.team.sync();
    for (int s = 0; s < kSamples; ++s) utility[s] = place[s];
  }
}

// The negative log-likelihood of class y, weighted by row, and with kGradient the gradients of its sum
// in the same pass: those of a sample's utilities are w_s (p_sk - [k = y]), with w_s = p_sy over the sum
// of all samples', which divides the sums in the end.
template <class T, int kSamples, bool kGradient, bool kTiles, bool kShares>
__global__ void __launch_bounds__(kThreadsWithManyRegisters<T>)
    nll_kernel(DeviceHead<T> device_head, Plan plan, Batch batch, SampleNumbers<T> given, NllTarget<T> target,
               T* __restrict__ loss, DeviceGradient<T> out) {
  constexpr Purpose kPurpose = kGradient ? kBackward : kForward;
  Sampler<T, kSamples, kPurpose> sampler(device_head, plan, batch);
  const Head<T>& head = sampler.head;
  Team<T>& team = sampler.team;
  GradientSums<T, kSamples, kPurpose, kShares> gradient(sampler);
  const Part part(sampler.groups());
  for (int64_t group = part.begin; group < part.end; ++group) {
    if constexpr (kTiles && !kGradient)
      sampler.place(group);  // what is given is enough
    else
      sampler.bind(group);
    const int64_t own_target = target.classes[sampler.row()] - sampler.first_class();  // 0 to 3 if it is the thread's
    // The likelihoods are summed as they are. If they come near underflow, once more, relative to the
    // largest one, which takes a pass of its own to find.
    enum { kDirect, kFindLargest, kRelative } pass = kDirect;
    bool relative = false;  // this row
    T reference = T(0), sum = T(0);
    for (;;) {
      T weights = T(0), largest = -kInfinity<T>;
      if constexpr (kGradient) gradient.clear();
#pragma unroll 1
      for (int64_t step = 0; step < sampler.steps(); ++step) {
        Draw<T, kSamples> draw{};
        if constexpr (kTiles && !kGradient)
          draw.sample = sampler.first_sample(step);
        else
          sampler.draw(step, draw);
        T utility[kSamples];
        read_target<kTiles>(sampler, draw, own_target, step, given, utility);
        const auto softmax =
            Softmax<T, kSamples>::template of<kTiles>(draw, head.samples, team, given, sampler.sample_at(draw.sample));
        T delta[kSamples][4];
        for (int s = 0; s < kSamples; ++s) {
          const T difference = utility[s] - softmax.max[s];
          T weight = exponential(difference) * softmax.inverse_sum[s];
          if (HETNET_RARE(pass != kDirect)) {
            const bool valid = draw.sample + s < head.samples;
            const T log_likelihood = difference - hetnet::log(softmax.sum[s]);
            if (valid) largest = fmax(largest, log_likelihood);
            if (relative) weight = valid ? hetnet::exp(log_likelihood - reference) : T(0);
          }
          weights += weight;
          for (int j = 0; j < kClasses; ++j)
            delta[s][j] = weight * (softmax.probability(s, j) - (own_target == j ? T(1) : T(0)));
        }
        if constexpr (kGradient)
          if (!HETNET_RARE(pass == kFindLargest)) gradient.add(draw, delta);
      }
      sum = sum_over_teams(team, sampler.merge(), weights);
      if (pass == kRelative) break;
      __syncthreads();
      if (pass == kDirect) {
        relative = sum < T(kSmallestProbability) * static_cast<T>(head.samples);
        if (!__syncthreads_or(relative)) break;
        pass = kFindLargest;
      } else {
        const T most = max_over_teams(team, sampler.merge(), largest);
        // A masked class has no probability at all.
        relative = relative && most > -kInfinity<T>;
        if (relative) reference = most;
        pass = kRelative;
      }
    }

    // Rows of weight 0 count for nothing, not even as NaN.
    const T row_weight = target.row_weight[sampler.row()];
    const T log_likelihood = reference + log_or_limit(sum / static_cast<T>(head.samples));
    if (sampler.live() && sampler.tile() == 0 && team.team == 0 && team.lane == 0)
      loss[sampler.row()] = row_weight == T(0) ? T(0) : -row_weight * log_likelihood;
    if constexpr (kGradient)
      gradient.store(row_weight == T(0) || sum == T(0) ? T(0) : row_weight / sum, some_utility<kTiles>(sampler, given),
                     out, blockIdx.x, group == part.begin);
  }
}

}  // namespace cuda
}  // namespace hetnet
