// What the kernels need of CUDA, for nvcc or for the tests' emulator of it.
#pragma once

#if defined(__CUDACC__)

#include <cuda_runtime.h>

#else

#include "cuemu.h"

#endif

// Everything is inlined into its kernel, whose numbers then stay in registers.
#define HETNET_DEVICE __device__ __forceinline__

namespace hetnet {
namespace cuda {

// The dynamic shared memory of a block, aligned to 16 bytes.
HETNET_DEVICE unsigned char* shared_memory() {
#if defined(__CUDACC__)
  extern __shared__ __align__(16) unsigned char memory[];
  return memory;
#else
  return static_cast<unsigned char*>(cuemu::dyn_smem());
#endif
}

constexpr unsigned kAllLanes = 0xffffffffu;

// The four classes of a thread: what one call of the generator draws for, and one vector load.
template <class T>
struct alignas(16) Quad {
  T of[4];
};

template <class T>
HETNET_DEVICE void fill(T (&numbers)[4], T value) {
  for (int j = 0; j < 4; ++j) numbers[j] = value;
}

}  // namespace cuda
}  // namespace hetnet
