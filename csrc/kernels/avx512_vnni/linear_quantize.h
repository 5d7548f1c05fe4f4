// What generic/linear_quantize.h needs of AVX-512: a block is 2 vectors of 16 values.
#pragma once

#include "kernels/avx512_vnni/linear_sources.h"

namespace octavo::avx512_vnni {
namespace {

struct BlockValues {
  __m512 low, high;
};

// Quantises 16 values into out and returns their sum.
OCTAVO_INLINE int32_t quantize_half(__m512 x, float d, int8_t* out) {
  __m512 scaled = _mm512_div_ps(x, _mm512_set1_ps(d));
  scaled = _mm512_min_ps(scaled, _mm512_set1_ps(127.0f));
  scaled = _mm512_max_ps(scaled, _mm512_set1_ps(-127.0f));
  const __m512i q = _mm512_cvt_roundps_epi32(scaled, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(q));
  return _mm512_reduce_add_epi32(q);
}

OCTAVO_INLINE void quantize_values(const BlockValues& x, float d, int8_t (&q)[32], int32_t (&sums)[2]) {
  sums[0] = quantize_half(x.low, d, q);
  sums[1] = quantize_half(x.high, d, q + 16);
}

OCTAVO_INLINE uint32_t max_magnitude(const BlockValues& x) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i low = _mm512_and_si512(_mm512_castps_si512(x.low), magnitude);
  const __m512i high = _mm512_and_si512(_mm512_castps_si512(x.high), magnitude);
  return _mm512_reduce_max_epu32(_mm512_max_epu32(low, high));
}

// 16 values from `column` on; zero past `cols`.
OCTAVO_INLINE __m512 load_columns(const float* x, int32_t column, int32_t cols) {
  const int32_t left = cols - column;
  if (left >= 16) return _mm512_loadu_ps(x + column);
  if (left <= 0) return _mm512_setzero_ps();
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1 << left) - 1), x + column);
}

OCTAVO_INLINE BlockValues load_block(const float* row, int32_t block, int32_t cols) {
  return {load_columns(row, 32 * block, cols), load_columns(row, 32 * block + 16, cols)};
}

// What the codes at `q` leave over of 16 values.
OCTAVO_INLINE __m512 subtract_half(__m512 x, float d, const int8_t* q) {
  x = _mm512_min_ps(x, _mm512_set1_ps(kMaxFloat));
  x = _mm512_max_ps(x, _mm512_set1_ps(-kMaxFloat));
  const __m512i codes = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q)));
  return _mm512_fnmadd_ps(_mm512_set1_ps(d), _mm512_cvtepi32_ps(codes), x);
}

OCTAVO_INLINE void subtract_terms(const ActBlock& block, int32_t t, BlockValues& x) {
  x.low = subtract_half(x.low, block.d[t], block.q[t]);
  x.high = subtract_half(x.high, block.d[t], block.q[t] + 16);
}

#include "kernels/generic/linear_quantize.h"

}  // namespace
}  // namespace octavo::avx512_vnni
