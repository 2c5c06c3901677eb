#include "scratch.h"

#include <new>

namespace hetnet {
namespace {

constexpr std::align_val_t kAlignment{64};
constexpr int kSizes = 6;  // blocks of 1 KiB, 2 KiB, ... 32 KiB are kept,
constexpr int kKept = 8;   // this many of each: half a mebibyte a thread at most

std::size_t block_bytes(int size) { return std::size_t{1024} << size; }

// The smallest kept size that holds `bytes`, or kSizes.
int size_for(std::size_t bytes) {
  int size = 0;
  while (size < kSizes && block_bytes(size) < bytes) ++size;
  return size;
}

struct Pool {
  void* blocks[kSizes][kKept];
  int count[kSizes] = {};

  ~Pool() {
    for (int size = 0; size < kSizes; ++size)
      for (int i = 0; i < count[size]; ++i) ::operator delete(blocks[size][i], kAlignment);
  }
};

thread_local Pool pool;

}  // namespace

void* allocate_scratch(std::size_t bytes) {
  const int size = size_for(bytes);
  if (size == kSizes) return ::operator new(bytes, kAlignment);
  if (pool.count[size] > 0) return pool.blocks[size][--pool.count[size]];
  return ::operator new(block_bytes(size), kAlignment);
}

void free_scratch(void* block, std::size_t bytes) {
  const int size = size_for(bytes);
  if (size < kSizes && pool.count[size] < kKept)
    pool.blocks[size][pool.count[size]++] = block;
  else
    ::operator delete(block, kAlignment);
}

}  // namespace hetnet
