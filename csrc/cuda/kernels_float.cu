#include "calls.cuh"

template struct hetnet::cuda::Kernels<float>;
