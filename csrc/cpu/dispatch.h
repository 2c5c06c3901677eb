// The choice of instruction set, made once for each process.
#pragma once

#include "../core/head.h"

namespace hetnet {

template <class T>
Kernels<T> baseline_kernels();
template <class T>
Kernels<T> avx2_kernels();
template <class T>
Kernels<T> avx512_kernels();

enum class CpuCapability { kBaseline, kAvx2, kAvx512 };

// The best that this processor runs.
CpuCapability supported_capability();
// The one in use: the best, or what the environment variable HETNET_CPU_CAPABILITY names
// (baseline, avx2, avx512). A name that is unknown or not supported here is not obeyed:
// the Python package refuses it at import.
CpuCapability capability();
const char* name(CpuCapability capability);

// The kernels of capability().
template <class T>
const Kernels<T>& kernels();

}  // namespace hetnet
