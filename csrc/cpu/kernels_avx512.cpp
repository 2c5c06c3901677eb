// The CPU kernels for AVX-512 (F, DQ, BW, VL).
#if defined(__x86_64__)
#include "standard_headers.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,prefer-vector-width=512")
#endif

#define HETNET_CPU_AVX512 1
#define HETNET_FMA 1
#define HETNET_CPU_NAMESPACE avx512
#include "dispatch.h"
#include "kernels.h"

namespace hetnet {

template <>
Kernels<float> avx512_kernels() {
  return avx512::kernel_table<float>();
}
template <>
Kernels<double> avx512_kernels() {
  return avx512::kernel_table<double>();
}

}  // namespace hetnet

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif  // __x86_64__
