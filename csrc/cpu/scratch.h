// Scratch memory of the kernels, aligned to 64 bytes.
//
// A kernel takes a few small blocks for every group of rows. Each thread keeps some that it has
// given back, so that small heads do not spend their time in the allocator.
#pragma once

#include <cstddef>

namespace hetnet {

void* allocate_scratch(std::size_t bytes);
// `bytes` as it was asked for.
void free_scratch(void* block, std::size_t bytes);

}  // namespace hetnet
