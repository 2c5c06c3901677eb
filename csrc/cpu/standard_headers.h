// Every system header that the kernels use. An instruction set's file includes it before it
// raises the target, so that no inline function of these headers is compiled for it: the
// linker keeps one copy of such a function, and other files must be able to run it.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
