// Included inside `namespace octavo::<isa> { namespace {`: no include, no namespace here.
// What generic/linear_quantize.h needs of AVX-512: a block is 2 vectors of 16 values.

#include "kernels/generic/quantize_types.h"
#include "kernels/isa/reduce_eight.h"

struct BlockValues {
  __m512 low, high;
};

OCTAVO_INLINE Ints8 max_magnitudes(const BlockValues (&x)[8]) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m256i most[8];
#pragma GCC unroll 8
  for (int32_t i = 0; i < 8; ++i) {
    const __m512i low = _mm512_and_si512(_mm512_castps_si512(x[i].low), magnitude);
    const __m512i high = _mm512_and_si512(_mm512_castps_si512(x[i].high), magnitude);
    const __m512i both = _mm512_max_epu32(low, high);
    most[i] = Max::of(_mm512_castsi512_si256(both), _mm512_extracti64x4_epi64(both, 1));
  }
  __m256i halves[2];
  reduce_halves<Max>(most, halves);
  return __builtin_bit_cast(Ints8, Max::of(halves[0], halves[1]));
}

OCTAVO_INLINE __m128i quantize_half(__m512 x, __m512 inverse) {
  const __m512i q = _mm512_cvt_roundps_epi32(_mm512_mul_ps(x, inverse), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return _mm512_cvtepi32_epi8(q);
}

OCTAVO_INLINE void quantize_values(const BlockValues (&x)[8], Floats8 inverse, int8_t* const (&q)[8],
                                   Ints8 (&sums)[2]) {
  __m256i fours[8];  // sums of 4 codes: the lower 4 of the first 16, the others of the last
#pragma GCC unroll 8
  for (int32_t i = 0; i < 8; ++i) {
    const __m512 scale = _mm512_set1_ps(inverse[i]);
    const __m256i codes = _mm256_set_m128i(quantize_half(x[i].high, scale), quantize_half(x[i].low, scale));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q[i]), codes);
    fours[i] = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), codes), _mm256_set1_epi16(1));
  }
  __m256i halves[2];
  reduce_halves<Sum>(fours, halves);
  sums[0] = __builtin_bit_cast(Ints8, halves[0]);
  sums[1] = __builtin_bit_cast(Ints8, halves[1]);
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
