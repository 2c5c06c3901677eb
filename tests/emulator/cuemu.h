// Lets a C++ compiler build CUDA kernels for the CPU: include this where nvcc would include cuda_runtime.h.
//
// What is left to the kernels' sources: dynamic shared memory is cuemu::dyn_smem() and kernels are started with
// cuemu::launch(), as `extern __shared__` and <<<>>> are not C++. Static shared memory is not filled with NaN, and
// races between blocks do not show but in results that differ between orders; nothing here tells how fast a kernel is.
#pragma once

#if defined(__CUDACC__)
#error "cuemu.h is for the host's compiler"
#endif

#include "engine.h"
#include "intrinsics.h"
#include "settings.h"
#include "vector_types.h"

#define __global__
#define __device__
#define __host__
#define __shared__ static  // one block runs at a time
#define __constant__ static
#define __forceinline__ inline
#define __launch_bounds__(...)

#define threadIdx (cuemu::engine.thread_index())
#define blockIdx (cuemu::engine.block_index())
#define blockDim (cuemu::engine.block_size())
#define gridDim (cuemu::engine.grid_size())
#define warpSize (cuemu::kWarpSize)

namespace cuemu {

// The block's dynamic shared memory, aligned to 16 bytes.
inline void* dyn_smem() { return engine.shared_memory(); }

}  // namespace cuemu
