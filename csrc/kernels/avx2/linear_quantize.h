// What generic/linear_quantize.h needs of AVX2: a block is 4 vectors of 8 values.
#pragma once

#include "kernels/avx2/linear_sources.h"

namespace octavo::avx2 {
namespace {

#include "kernels/generic/quantize_types.h"
#include "kernels/isa/reduce_eight.h"

struct BlockValues {
  __m256 v[4];
};

OCTAVO_INLINE Ints8 max_magnitudes(const BlockValues (&x)[8]) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i most[8];
#pragma GCC unroll 8
  for (int32_t i = 0; i < 8; ++i) {
    const auto of = [&](int32_t v) { return _mm256_and_si256(_mm256_castps_si256(x[i].v[v]), magnitude); };
    most[i] = Max::of(Max::of(of(0), of(1)), Max::of(of(2), of(3)));
  }
  __m256i halves[2];
  reduce_halves<Max>(most, halves);
  return __builtin_bit_cast(Ints8, Max::of(halves[0], halves[1]));
}

OCTAVO_INLINE __m256i quantize_quarter(__m256 x, __m256 inverse) {
  return _mm256_cvtps_epi32(
      _mm256_round_ps(_mm256_mul_ps(x, inverse), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

OCTAVO_INLINE void quantize_values(const BlockValues (&x)[8], Floats8 inverse, int8_t* const (&q)[8],
                                   Ints8 (&sums)[2]) {
  // Packing keeps the two 128-bit lanes apart: fours of codes come out in the order 0 2 4 6 1 3 5 7.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  __m256i fours[8];  // sums of 4 codes: the lower 4 of the first 16, the others of the last
#pragma GCC unroll 8
  for (int32_t i = 0; i < 8; ++i) {
    const __m256 scale = _mm256_set1_ps(inverse[i]);
    const auto part = [&](int32_t v) { return quantize_quarter(x[i].v[v], scale); };
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(part(0), part(1)), _mm256_packs_epi32(part(2), part(3)));
    const __m256i codes = _mm256_permutevar8x32_epi32(packed, order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q[i]), codes);
    fours[i] = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), codes), _mm256_set1_epi16(1));
  }
  __m256i halves[2];
  reduce_halves<Sum>(fours, halves);
  sums[0] = __builtin_bit_cast(Ints8, halves[0]);
  sums[1] = __builtin_bit_cast(Ints8, halves[1]);
}

// Ones in the first n of 8 lanes, for any n.
OCTAVO_INLINE __m256i first_lanes(int32_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

OCTAVO_INLINE BlockValues load_block(const float* row, int32_t block, int32_t cols) {
  const float* x = row + 32 * static_cast<size_t>(block);
  const int32_t left = cols - 32 * block;
  if (left >= 32) {
    return {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8), _mm256_loadu_ps(x + 16), _mm256_loadu_ps(x + 24)};
  }
  return {_mm256_maskload_ps(x, first_lanes(left)), _mm256_maskload_ps(x + 8, first_lanes(left - 8)),
          _mm256_maskload_ps(x + 16, first_lanes(left - 16)), _mm256_maskload_ps(x + 24, first_lanes(left - 24))};
}

OCTAVO_INLINE void subtract_terms(const ActBlock& block, int32_t t, BlockValues& x) {
  const __m256 d = _mm256_set1_ps(block.d[t]);
#pragma GCC unroll 4
  for (int32_t i = 0; i < 4; ++i) {
    __m256 value = _mm256_min_ps(x.v[i], _mm256_set1_ps(kMaxFloat));
    value = _mm256_max_ps(value, _mm256_set1_ps(-kMaxFloat));
    const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(block.q[t] + 8 * i));
    x.v[i] = _mm256_fnmadd_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)), value);
  }
}

#include "kernels/generic/linear_quantize.h"

}  // namespace
}  // namespace octavo::avx2
