// The SIMD vocabulary of the step kernels on AVX2: 16 float lanes in two registers. Same names as vec_scalar.h, and the
// same bits as vec_avx512.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include <immintrin.h>

#include "formats/bf16.h"
#include "formats/f16.h"

namespace octavo::avx2 {
namespace {

struct Vec {
  __m256 low, high;
};
using Mask = uint32_t;  // bit i = lane i
constexpr int kVecRegisters = 8;  // how many Vec they hold

// A comparison's lanes, all ones or all zeros: a Mask for whoever wants one, free of charge for select.
struct LaneMask {
  __m256 low, high;
  operator Mask() const {
    return static_cast<Mask>(_mm256_movemask_ps(low)) | static_cast<Mask>(_mm256_movemask_ps(high)) << 8;
  }
};

inline Vec splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Vec zero() { return splat(0.0f); }
inline Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Vec v) {
  _mm256_storeu_ps(p, v.low);
  _mm256_storeu_ps(p + 8, v.high);
}

// Ones in the first n of 8 lanes, for any n.
inline __m256i first_lanes(int32_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
// The first n lanes, 0 <= n <= 16; lanes past them read as 0 and are not touched in memory.
inline Vec load_part(const float* p, int32_t n) {
  return {_mm256_maskload_ps(p, first_lanes(n)), _mm256_maskload_ps(p + 8, first_lanes(n - 8))};
}
inline void store_part(float* p, Vec v, int32_t n) {
  _mm256_maskstore_ps(p, first_lanes(n), v.low);
  _mm256_maskstore_ps(p + 8, first_lanes(n - 8), v.high);
}

inline __m256 widen(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline Vec load_kv(const float* p) { return load(p); }
inline Vec load_kv_part(const float* p, int32_t n) { return load_part(p, n); }
inline Vec load_kv(const uint16_t* p) { return {widen(p), widen(p + 8)}; }
inline Vec load_kv_part(const uint16_t* p, int32_t n) {
  uint16_t halves[16] = {};
  for (int32_t i = 0; i < n; ++i) halves[i] = p[i];
  return load_kv(halves);
}
inline void store_kv_part(float* p, Vec v, int32_t n) { store_part(p, v, n); }
inline void store_kv_part(uint16_t* p, Vec v, int32_t n) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  uint16_t halves[16];
  uint16_t* to = n == 16 ? p : halves;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(v.low, kNearest));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 8), _mm256_cvtps_ph(v.high, kNearest));
  if (n == 16) return;
  for (int32_t i = 0; i < n; ++i) p[i] = halves[i];
}

inline __m128i low_half(__m128i x) { return x; }
inline __m128i high_half(__m128i x) { return _mm_unpackhi_epi64(x, x); }
// Codes of 16 channels or tokens; what a code stands for is in step_kv.h.
inline Vec load_bf16(const Bf16* p) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const auto up = [](__m128i half) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  };
  return {up(_mm256_castsi256_si128(words)), up(_mm256_extracti128_si256(words, 1))};
}
inline Vec widen_signed(__m128i bytes) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low_half(bytes))),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high_half(bytes)))};
}
inline Vec load_int8(const uint8_t* p) { return widen_signed(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
// The half precision numbers whose sign is a code's first bit and whose other bits begin with the code's rest, after
// kSkip zeros.
template <int kSkip>
inline Vec load_float8(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const auto half = [](__m128i eight) {
    const __m128i words = _mm_slli_epi16(_mm_cvtepu8_epi16(eight), 8);
    if constexpr (kSkip == 0) return _mm256_cvtph_ps(words);
    const __m128i sign = _mm_and_si128(words, _mm_set1_epi16(static_cast<int16_t>(0x8000)));
    const __m128i rest = _mm_srli_epi16(_mm_andnot_si128(_mm_set1_epi16(static_cast<int16_t>(0x8000)), words), kSkip);
    return _mm256_cvtph_ps(_mm_or_si128(sign, rest));
  };
  return {half(low_half(bytes)), half(high_half(bytes))};
}
// The lower (shift 0) or upper (shift 4) four bits of 16 bytes.
template <int kShift>
inline Vec load_nibbles(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return widen_signed(_mm_and_si128(_mm_srli_epi16(bytes, kShift), _mm_set1_epi8(15)));
}
// The lower four bits of 8 bytes, then the upper.
inline Vec load_packed_nibbles(const uint8_t* p) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  const __m128i both = _mm_unpacklo_epi64(bytes, _mm_srli_epi16(bytes, 4));
  return widen_signed(_mm_and_si128(both, _mm_set1_epi8(15)));
}

inline Vec add(Vec a, Vec b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Vec sub(Vec a, Vec b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Vec mul(Vec a, Vec b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Vec div(Vec a, Vec b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Vec square_root(Vec a) { return {_mm256_sqrt_ps(a.low), _mm256_sqrt_ps(a.high)}; }
// b where either is NaN.
inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
inline Vec round(Vec a) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.low, kNearest), _mm256_round_ps(a.high, kNearest)};
}

inline __m256 power_of_two(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
inline __m256 scale_lanes(__m256 a, __m256 n) {
  // NaN gives some exponent; the product stays NaN through `a`.
  const __m256i power = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(power, 1);
  return _mm256_mul_ps(_mm256_mul_ps(a, power_of_two(half)), power_of_two(_mm256_sub_epi32(power, half)));
}
// a * 2^n for integral n in [-126, 128]; in two factors because 2^128 is no float.
inline Vec scale_by_power(Vec a, Vec n) { return {scale_lanes(a.low, n.low), scale_lanes(a.high, n.high)}; }
inline Vec swap_pairs(Vec a) { return {_mm256_permute_ps(a.low, 0xB1), _mm256_permute_ps(a.high, 0xB1)}; }

inline LaneMask greater(Vec a, Vec b) {
  return {_mm256_cmp_ps(a.low, b.low, _CMP_GT_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_GT_OQ)};
}
inline LaneMask equal(Vec a, Vec b) {
  return {_mm256_cmp_ps(a.low, b.low, _CMP_EQ_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_EQ_OQ)};
}
inline LaneMask less(Vec a, Vec b) { return greater(b, a); }

inline __m256 spread_bits(Mask mask) {
  const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i own = _mm256_and_si256(_mm256_set1_epi32(static_cast<int32_t>(mask)), bits);
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(own, bits));
}
inline Vec select(LaneMask mask, Vec a, Vec b) {
  return {_mm256_blendv_ps(b.low, a.low, mask.low), _mm256_blendv_ps(b.high, a.high, mask.high)};
}
// Lane i from `a` where mask has bit i, else from `b`.
inline Vec select(Mask mask, Vec a, Vec b) { return select(LaneMask{spread_bits(mask), spread_bits(mask >> 8)}, a, b); }

inline float reduce_add(Vec a) {
  const __m256 eight = _mm256_add_ps(a.low, a.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float reduce_max(Vec a) {
  const __m256 eight = _mm256_max_ps(a.low, a.high);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

inline int32_t write_indices(Mask mask, int32_t base, int32_t* out) {
  int32_t count = 0;
  for (; mask != 0; mask &= mask - 1) out[count++] = base + __builtin_ctz(mask);
  return count;
}

inline void prefetch_far(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

}  // namespace
}  // namespace octavo::avx2
