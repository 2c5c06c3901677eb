// CPU vectors as lane types: the compiler's vector extension, plus the few operations
// that it has no portable spelling for.
//
// The including file chooses the instruction set by defining HETNET_CPU_AVX512,
// HETNET_CPU_AVX2 or neither (SSE2 or NEON, 16 bytes) and HETNET_CPU_NAMESPACE.
#pragma once

#include "../core/lane.h"

#if defined(HETNET_CPU_AVX512)
#define HETNET_VECTOR_BYTES 64
#elif defined(HETNET_CPU_AVX2)
#define HETNET_VECTOR_BYTES 32
#else
#define HETNET_VECTOR_BYTES 16
#endif

#if defined(HETNET_CPU_AVX512) || defined(__aarch64__)
#define HETNET_VECTOR_REGISTERS 32
#else
#define HETNET_VECTOR_REGISTERS 16
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace hetnet {
namespace HETNET_CPU_NAMESPACE {

typedef float FloatVec __attribute__((vector_size(HETNET_VECTOR_BYTES)));
typedef double DoubleVec __attribute__((vector_size(HETNET_VECTOR_BYTES)));
typedef float HalfFloatVec __attribute__((vector_size(HETNET_VECTOR_BYTES / 2)));
typedef int32_t Int32Vec __attribute__((vector_size(HETNET_VECTOR_BYTES)));
typedef uint32_t UInt32Vec __attribute__((vector_size(HETNET_VECTOR_BYTES)));
typedef int64_t Int64Vec __attribute__((vector_size(HETNET_VECTOR_BYTES)));
typedef uint64_t UInt64Vec __attribute__((vector_size(HETNET_VECTOR_BYTES)));

namespace detail {

#if defined(HETNET_CPU_AVX512)
// The unmasked forms of these intrinsics read an uninitialised register, at which g++ 12
// warns; with every lane selected the masked ones are the same instruction.
constexpr __mmask16 kFloats = 0xffff;
constexpr __mmask8 kDoubles = 0xff;

HETNET_INLINE FloatVec fmadd(FloatVec a, FloatVec b, FloatVec c) {
  return (FloatVec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
HETNET_INLINE DoubleVec fmadd(DoubleVec a, DoubleVec b, DoubleVec c) {
  return (DoubleVec)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
}
HETNET_INLINE FloatVec square_root(FloatVec x) { return (FloatVec)_mm512_maskz_sqrt_ps(kFloats, (__m512)x); }
HETNET_INLINE DoubleVec square_root(DoubleVec x) { return (DoubleVec)_mm512_maskz_sqrt_pd(kDoubles, (__m512d)x); }
HETNET_INLINE FloatVec maximum(FloatVec a, FloatVec b) {
  return (FloatVec)_mm512_maskz_max_ps(kFloats, (__m512)a, (__m512)b);
}
HETNET_INLINE DoubleVec maximum(DoubleVec a, DoubleVec b) {
  return (DoubleVec)_mm512_maskz_max_pd(kDoubles, (__m512d)a, (__m512d)b);
}
HETNET_INLINE UInt64Vec multiply_low_words(UInt64Vec a, UInt64Vec b) {
  return (UInt64Vec)_mm512_maskz_mul_epu32(kDoubles, (__m512i)a, (__m512i)b);
}
HETNET_INLINE UInt32Vec interleave_low_words(UInt64Vec a, UInt64Vec b) {
  return (UInt32Vec)_mm512_maskz_shuffle_ps(kFloats, (__m512)a, (__m512)b, _MM_SHUFFLE(2, 0, 2, 0));
}
#elif defined(HETNET_CPU_AVX2)
HETNET_INLINE FloatVec fmadd(FloatVec a, FloatVec b, FloatVec c) {
  return (FloatVec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
HETNET_INLINE DoubleVec fmadd(DoubleVec a, DoubleVec b, DoubleVec c) {
  return (DoubleVec)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
}
HETNET_INLINE FloatVec square_root(FloatVec x) { return (FloatVec)_mm256_sqrt_ps((__m256)x); }
HETNET_INLINE DoubleVec square_root(DoubleVec x) { return (DoubleVec)_mm256_sqrt_pd((__m256d)x); }
HETNET_INLINE FloatVec maximum(FloatVec a, FloatVec b) { return (FloatVec)_mm256_max_ps((__m256)a, (__m256)b); }
HETNET_INLINE DoubleVec maximum(DoubleVec a, DoubleVec b) { return (DoubleVec)_mm256_max_pd((__m256d)a, (__m256d)b); }
HETNET_INLINE UInt64Vec multiply_low_words(UInt64Vec a, UInt64Vec b) {
  return (UInt64Vec)_mm256_mul_epu32((__m256i)a, (__m256i)b);
}
HETNET_INLINE UInt32Vec interleave_low_words(UInt64Vec a, UInt64Vec b) {
  return (UInt32Vec)_mm256_shuffle_ps((__m256)a, (__m256)b, _MM_SHUFFLE(2, 0, 2, 0));
}
#elif defined(__x86_64__)
HETNET_INLINE FloatVec fmadd(FloatVec a, FloatVec b, FloatVec c) { return a * b + c; }
HETNET_INLINE DoubleVec fmadd(DoubleVec a, DoubleVec b, DoubleVec c) { return a * b + c; }
HETNET_INLINE FloatVec square_root(FloatVec x) { return (FloatVec)_mm_sqrt_ps((__m128)x); }
HETNET_INLINE DoubleVec square_root(DoubleVec x) { return (DoubleVec)_mm_sqrt_pd((__m128d)x); }
HETNET_INLINE FloatVec maximum(FloatVec a, FloatVec b) { return (FloatVec)_mm_max_ps((__m128)a, (__m128)b); }
HETNET_INLINE DoubleVec maximum(DoubleVec a, DoubleVec b) { return (DoubleVec)_mm_max_pd((__m128d)a, (__m128d)b); }
HETNET_INLINE UInt64Vec multiply_low_words(UInt64Vec a, UInt64Vec b) {
  return (UInt64Vec)_mm_mul_epu32((__m128i)a, (__m128i)b);
}
HETNET_INLINE UInt32Vec interleave_low_words(UInt64Vec a, UInt64Vec b) {
  return (UInt32Vec)_mm_shuffle_ps((__m128)a, (__m128)b, _MM_SHUFFLE(2, 0, 2, 0));
}
#elif defined(__aarch64__)
HETNET_INLINE FloatVec fmadd(FloatVec a, FloatVec b, FloatVec c) {
  return (FloatVec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
HETNET_INLINE DoubleVec fmadd(DoubleVec a, DoubleVec b, DoubleVec c) {
  return (DoubleVec)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
}
HETNET_INLINE FloatVec square_root(FloatVec x) { return (FloatVec)vsqrtq_f32((float32x4_t)x); }
HETNET_INLINE DoubleVec square_root(DoubleVec x) { return (DoubleVec)vsqrtq_f64((float64x2_t)x); }
HETNET_INLINE FloatVec maximum(FloatVec a, FloatVec b) { return a > b ? a : b; }
HETNET_INLINE DoubleVec maximum(DoubleVec a, DoubleVec b) { return a > b ? a : b; }
HETNET_INLINE UInt64Vec multiply_low_words(UInt64Vec a, UInt64Vec b) {
  return (UInt64Vec)vmull_u32(vmovn_u64((uint64x2_t)a), vmovn_u64((uint64x2_t)b));
}
HETNET_INLINE UInt32Vec interleave_low_words(UInt64Vec a, UInt64Vec b) {
  return (UInt32Vec)vuzp1q_u32((uint32x4_t)a, (uint32x4_t)b);
}
#else
#error "hetnet_ext has CPU kernels for x86-64 and 64-bit ARM"
#endif

template <class V, class S, class I, class U>
struct vector_lane {
  using Scalar = S;
  using Int = I;
  using UInt = U;
  using Mask = I;
  static constexpr int width = HETNET_VECTOR_BYTES / sizeof(S);

  static HETNET_INLINE V splat(S x) { return x - V{}; }  // -0.0 - 0.0 is -0.0: exact for every x
  static HETNET_INLINE V select(I mask, V yes, V no) { return mask ? yes : no; }
  static HETNET_INLINE I bits(V x) { return (I)x; }
  static HETNET_INLINE V from_bits(I x) { return (V)x; }
  static HETNET_INLINE V to_real(I x) { return __builtin_convertvector(x, V); }
  static HETNET_INLINE V square_root(V x) { return detail::square_root(x); }
  static HETNET_INLINE V fmadd(V a, V b, V c) { return detail::fmadd(a, b, c); }

  // max(a, b); where either is NaN it is b
  static HETNET_INLINE V maximum(V a, V b) { return detail::maximum(a, b); }

  static HETNET_INLINE V load(const S* p) {
    V x;
    std::memcpy(&x, p, sizeof(x));
    return x;
  }
  static HETNET_INLINE void store(S* p, V x) { std::memcpy(p, &x, sizeof(x)); }

  // The first `count` numbers only, or all where there are more; load_part fills up with `rest`.
  static HETNET_INLINE V load_part(const S* p, int64_t count, S rest = 0) {
    if (count >= width) return load(p);
    S lanes[width];
    store(lanes, splat(rest));
    copy_part<width / 2>(lanes, p, count);
    return load(lanes);
  }
  static HETNET_INLINE void store_part(S* p, int64_t count, V x) {
    if (count >= width) return store(p, x);
    S lanes[width];
    store(lanes, x);
    copy_part<width / 2>(p, lanes, count);
  }
  // In pieces of a fixed size, by the bits of `count`.
  template <int kPiece>
  static HETNET_INLINE void copy_part(S* to, const S* from, int64_t count) {
    const int64_t piece = count & kPiece;
    if (piece) std::memcpy(to, from, kPiece * sizeof(S));
    if constexpr (kPiece > 1) copy_part<kPiece / 2>(to + piece, from + piece, count);
  }

  // Sum and maximum over the lanes, in a fixed order.
  static HETNET_INLINE S sum(V x) {
    S lanes[width];
    store(lanes, x);
    for (int half = width / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    return lanes[0];
  }
  // The sums over the lanes of `width` vectors, one a lane: fewer steps than one by one.
  static HETNET_INLINE V sums(const V* x) {
    V rows[width];
    for (int i = 0; i < width; ++i) rows[i] = x[i];
    transpose(rows);
    for (int half = width / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) rows[i] += rows[i + half];
    return rows[0];
  }
  // The maxima over the lanes of `width` vectors, one a lane.
  static HETNET_INLINE V maxima(const V* x) {
    V rows[width];
    for (int i = 0; i < width; ++i) rows[i] = x[i];
    transpose(rows);
    for (int half = width / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) rows[i] = maximum(rows[i], rows[i + half]);
    return rows[0];
  }
  static HETNET_INLINE S max_over_lanes(V x) {
    S best = x[0];
    for (int i = 1; i < width; ++i) best = x[i] > best ? x[i] : best;
    return best;
  }
  static HETNET_INLINE bool any(I mask) {
    I lanes = mask;
    for (int i = 0; i < width; ++i)
      if (lanes[i]) return true;
    return false;
  }
  // Turns `rows` into the columns of the square that they form.
  static HETNET_INLINE void transpose(V (&rows)[width]) {
    // Each step zips row i with row i + width / 2: a shuffle of the 2 log2(width) bits of an
    // element's position, which after log2(width) steps has swapped row and column.
    for (int step = 1; step < width; step *= 2) {
      V zipped[width];
      for (int i = 0; i < width / 2; ++i) {
        zipped[2 * i] = zip<0>(rows[i], rows[i + width / 2]);
        zipped[2 * i + 1] = zip<width / 2>(rows[i], rows[i + width / 2]);
      }
      for (int i = 0; i < width; ++i) rows[i] = zipped[i];
    }
  }

  // a[first], b[first], a[first + 1], b[first + 1], ...
  template <int kFirst>
  static HETNET_INLINE V zip(V a, V b) {
    return zip_blocks<kFirst, width>(a, b);
  }
  // The same within each 16 bytes.
  template <int kFirst>
  static HETNET_INLINE V zip_in_16_bytes(V a, V b) {
    return zip_blocks<kFirst, 16 / sizeof(S)>(a, b);
  }
  template <int kFirst, int kBlock>
  static constexpr int zip_source(int i) {
    return i / kBlock * kBlock + kFirst + i % kBlock / 2 + (i % 2) * width;
  }
#if defined(__clang__)
  template <int kFirst, int kBlock, int... kLane>
  static HETNET_INLINE V zip_lanes(V a, V b, std::integer_sequence<int, kLane...>) {
    return __builtin_shufflevector(a, b, zip_source<kFirst, kBlock>(kLane)...);
  }
  template <int kFirst, int kBlock>
  static HETNET_INLINE V zip_blocks(V a, V b) {
    return zip_lanes<kFirst, kBlock>(a, b, std::make_integer_sequence<int, width>());
  }
#else
  template <int kFirst, int kBlock>
  static HETNET_INLINE V zip_blocks(V a, V b) {
    I index{};
    for (int i = 0; i < width; ++i) index[i] = zip_source<kFirst, kBlock>(i);
    return __builtin_shuffle(a, b, index);
  }
#endif

  // Turns four vectors, which hold the first, second, third and fourth number of each lane's four,
  // into the runs of four: out holds, one after another, those of the lanes 0, 4, 8, ..., 1, 5, 9, ...
  // (in float) or 0, 1, 2, ... (in double). The order is what shuffles within 16 bytes, the cheapest,
  // make of it.
  static constexpr int lane_of_run(int run) {
    return sizeof(S) == sizeof(double) ? run : run % (width / 4) * 4 + run / (width / 4);
  }
  static HETNET_INLINE void interleave(const V (&numbers)[4], V (&out)[4]) {
    if constexpr (sizeof(S) == sizeof(double)) {
      const V even[2] = {zip<0>(numbers[0], numbers[2]), zip<width / 2>(numbers[0], numbers[2])};
      const V odd[2] = {zip<0>(numbers[1], numbers[3]), zip<width / 2>(numbers[1], numbers[3])};
      for (int half = 0; half < 2; ++half) {
        out[2 * half] = zip<0>(even[half], odd[half]);
        out[2 * half + 1] = zip<width / 2>(even[half], odd[half]);
      }
    } else {
      const V even[2] = {zip_in_16_bytes<0>(numbers[0], numbers[2]), zip_in_16_bytes<2>(numbers[0], numbers[2])};
      const V odd[2] = {zip_in_16_bytes<0>(numbers[1], numbers[3]), zip_in_16_bytes<2>(numbers[1], numbers[3])};
      for (int half = 0; half < 2; ++half) {
        out[2 * half] = zip_in_16_bytes<0>(even[half], odd[half]);
        out[2 * half + 1] = zip_in_16_bytes<2>(even[half], odd[half]);
      }
    }
  }

  // 0, 1, 2, ...
  static HETNET_INLINE I iota() {
    I x{};
    for (int i = 0; i < width; ++i) x[i] = i;
    return x;
  }
};

}  // namespace detail

template <class T>
struct vec_of;
template <>
struct vec_of<float> {
  using type = FloatVec;
  using as_many_as_doubles = HalfFloatVec;
};
template <>
struct vec_of<double> {
  using type = DoubleVec;
  using as_many_as_doubles = DoubleVec;
};
template <class T>
using Vec = typename vec_of<T>::type;

}  // namespace HETNET_CPU_NAMESPACE

template <>
struct lane<HETNET_CPU_NAMESPACE::FloatVec>
    : HETNET_CPU_NAMESPACE::detail::vector_lane<HETNET_CPU_NAMESPACE::FloatVec, float, HETNET_CPU_NAMESPACE::Int32Vec,
                                                HETNET_CPU_NAMESPACE::UInt32Vec> {
  static HETNET_INLINE HETNET_CPU_NAMESPACE::FloatVec round_to_float(HETNET_CPU_NAMESPACE::FloatVec x) { return x; }
};

template <>
struct lane<HETNET_CPU_NAMESPACE::DoubleVec>
    : HETNET_CPU_NAMESPACE::detail::vector_lane<HETNET_CPU_NAMESPACE::DoubleVec, double, HETNET_CPU_NAMESPACE::Int64Vec,
                                                HETNET_CPU_NAMESPACE::UInt64Vec> {
  static HETNET_INLINE HETNET_CPU_NAMESPACE::DoubleVec round_to_float(HETNET_CPU_NAMESPACE::DoubleVec x) {
    using namespace HETNET_CPU_NAMESPACE;
    return __builtin_convertvector(__builtin_convertvector(x, HalfFloatVec), DoubleVec);
  }
};

}  // namespace hetnet
