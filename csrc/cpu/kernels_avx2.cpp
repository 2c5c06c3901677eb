// The CPU kernels for AVX2 with fused multiply-add.
#if defined(__x86_64__)
#include "standard_headers.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif

#define HETNET_CPU_AVX2 1
#define HETNET_FMA 1
#define HETNET_CPU_NAMESPACE avx2
#include "dispatch.h"
#include "kernels.h"

namespace hetnet {

template <>
Kernels<float> avx2_kernels() {
  return avx2::kernel_table<float>();
}
template <>
Kernels<double> avx2_kernels() {
  return avx2::kernel_table<double>();
}

}  // namespace hetnet

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif  // __x86_64__
