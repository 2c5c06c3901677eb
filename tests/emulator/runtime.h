// The few calls of the CUDA runtime that the launchers make. The device is whatever a test says it is.
#pragma once

#include <cstdint>

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess = 0, cudaErrorUnknown = 999 };
enum cudaDeviceAttr { cudaDevAttrMaxSharedMemoryPerBlockOptin = 97 };

namespace cuemu {
inline int most_shared_bytes = 227 * 1024;
}

inline const char* cudaGetErrorString(cudaError_t) { return "an emulated error"; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorUnknown; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int device) {
  *value = cuemu::most_shared_bytes;
  return device == 0 ? cudaSuccess : cudaErrorUnknown;
}
