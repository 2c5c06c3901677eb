#include "dispatch.h"

#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace hetnet {

CpuCapability supported_capability() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    return CpuCapability::kAvx512;
  if (avx2) return CpuCapability::kAvx2;
#endif
  return CpuCapability::kBaseline;
}

const char* name(CpuCapability capability) {
  switch (capability) {
    case CpuCapability::kAvx512:
      return "avx512";
    case CpuCapability::kAvx2:
      return "avx2";
    default:
      return "baseline";
  }
}

CpuCapability capability() {
  static const CpuCapability chosen = [] {
    const CpuCapability best = supported_capability();
    const char* wanted = std::getenv("HETNET_CPU_CAPABILITY");
    if (wanted == nullptr) return best;
    for (const auto candidate : {CpuCapability::kBaseline, CpuCapability::kAvx2, CpuCapability::kAvx512})
      if (candidate <= best && std::strcmp(wanted, name(candidate)) == 0) return candidate;
    return best;
  }();
  return chosen;
}

template <class T>
const Kernels<T>& kernels() {
  static const Kernels<T> chosen = [] {
#if defined(__x86_64__)
    if (capability() == CpuCapability::kAvx512) return avx512_kernels<T>();
    if (capability() == CpuCapability::kAvx2) return avx2_kernels<T>();
#endif
    return baseline_kernels<T>();
  }();
  return chosen;
}

template const Kernels<float>& kernels();
template const Kernels<double>& kernels();

}  // namespace hetnet
