// The CPU kernels for every processor of the architecture: SSE2 without fused multiply-add
// on x86-64, NEON on ARM.
#include "standard_headers.h"

#define HETNET_CPU_NAMESPACE baseline
#include "dispatch.h"
#include "kernels.h"

namespace hetnet {

template <>
Kernels<float> baseline_kernels() {
  return baseline::kernel_table<float>();
}
template <>
Kernels<double> baseline_kernels() {
  return baseline::kernel_table<double>();
}

}  // namespace hetnet
