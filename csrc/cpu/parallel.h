// Threads, as the library that hosts the kernels provides them (torch, or a test binding).
#pragma once

#include <cstdint>

namespace hetnet {

int64_t num_threads();

// Calls fn(context, begin, end) on ranges that cover [0, count), each at least `grain` long.
void parallel_ranges(int64_t count, int64_t grain, void (*fn)(const void*, int64_t, int64_t), const void* context);

template <class F>
inline void parallel_for(int64_t count, int64_t grain, const F& f) {
  parallel_ranges(
      count, grain,
      [](const void* context, int64_t begin, int64_t end) { (*static_cast<const F*>(context))(begin, end); }, &f);
}

}  // namespace hetnet
