// The exponential and the reciprocal of the softmax. In single precision they are made of the GPU's own, in
// half as many instructions as the core's exponential and a division, and right within three units in the
// last place and one: the exponential's inputs are rounded utilities, whose last place counts for more. The
// noise does not come here.
#pragma once

#include "../core/elementary.h"
#include "device.cuh"

namespace hetnet {
namespace cuda {

// 2^x within 2 ulp, 0 where that is subnormal.
HETNET_DEVICE float approximate_exp2(float x) {
#if defined(__CUDACC__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return cuemu::ex2_approx(x);
#endif
}

// The larger of the two; NaN where x is.
HETNET_DEVICE float at_least(float x, float lowest) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(lowest));
  return y;
#else
  return x < lowest ? lowest : x;
#endif
}

// e^x for x <= 0, where it is 0 or normal.
HETNET_DEVICE float exponential(float x) {
  constexpr float kLog2E = 1.44269504f, kLog2ELow = 1.92596299e-8f, kLn2 = 0.693147181f;
  x = at_least(x, -150.0f);  // where it is 0 already, since -inf would make NaN of the rest
  const float power = x * kLog2E;
  // what rounding took from the power, and its effect on the result
  const float rest = fmaf(x, kLog2ELow, fmaf(x, kLog2E, -power));
  const float result = approximate_exp2(power);
  return fmaf(result * kLn2, rest, result);
}

HETNET_DEVICE double exponential(double x) { return hetnet::exp(x); }

// 1 / x for normal x: an approximation within 1 ulp, and a step of Newton's method. NaN for 0.
HETNET_DEVICE float reciprocal(float x) {
#if defined(__CUDACC__)
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
#else
  const float y = cuemu::rcp_approx(x);
#endif
  return fmaf(fmaf(-x, y, 1.0f), y, y);
}

HETNET_DEVICE double reciprocal(double x) { return 1 / x; }

}  // namespace cuda
}  // namespace hetnet
