#include "calls.cuh"

template struct hetnet::cuda::Kernels<double>;
