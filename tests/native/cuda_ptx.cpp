// The CUDA kernels' module, with what nvcc made of the kernels in their place.
#include <dlfcn.h>

#include HETNET_PTX
// after it, since it launches kernels
#include "cuda.cpp"

namespace {

bool run_ptx(const void* kernel, dim3 grid, dim3 block, std::size_t shared_bytes, void** parameters) {
  Dl_info info{};
  if (dladdr(kernel, &info) == 0 || info.dli_sname == nullptr) throw std::runtime_error("a kernel without a name");
  if (!ptx::run(info.dli_sname, grid, block, shared_bytes, parameters))
    throw std::runtime_error(std::string("no PTX for ") + info.dli_sname);
  return true;
}

const bool kReplaced = (cuemu::replacement = run_ptx) != nullptr;

}  // namespace
