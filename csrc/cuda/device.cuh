// What the kernels need of CUDA, for nvcc or for the tests' emulator of it.
#pragma once

#if defined(__CUDACC__)

#include <cuda_runtime.h>

#else

#include "cuemu.h"

#endif

// Of what is rarely true. Where only the usual path is to be counted, it is taken for false.
#if defined(HETNET_USUAL_PATH_ONLY)
#define HETNET_RARE(condition) false
#else
#define HETNET_RARE(condition) (condition)
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

// Numbers that are loaded and stored together.
template <class T, int kCount>
struct alignas(kCount * sizeof(T) < 16 ? kCount * sizeof(T) : 16) Pack {
  T of[kCount];
};
// The four classes of a thread: what one call of the generator draws for.
template <class T>
using Quad = Pack<T, 4>;

template <class T>
HETNET_DEVICE void fill(T (&numbers)[4], T value) {
  for (int j = 0; j < 4; ++j) numbers[j] = value;
}

}  // namespace cuda
}  // namespace hetnet
