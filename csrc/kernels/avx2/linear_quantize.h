// What generic/linear_quantize.h needs of AVX2: a block is 4 vectors of 8 values.
#pragma once

#include "kernels/avx2/linear_sources.h"

namespace octavo::avx2 {
namespace {

struct BlockValues {
  __m256 v[4];
};

OCTAVO_INLINE __m256i quantize_eight(__m256 x, __m256 d) {
  __m256 scaled = _mm256_div_ps(x, d);
  scaled = _mm256_min_ps(scaled, _mm256_set1_ps(127.0f));
  scaled = _mm256_max_ps(scaled, _mm256_set1_ps(-127.0f));
  return _mm256_cvtps_epi32(_mm256_round_ps(scaled, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// Of 4 integers.
OCTAVO_INLINE int32_t reduce_add(__m128i x) {
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}

OCTAVO_INLINE void quantize_values(const BlockValues& x, float scale, int8_t (&q)[32], int32_t (&sums)[2]) {
  const __m256 d = _mm256_set1_ps(scale);
  const __m256i low = _mm256_packs_epi32(quantize_eight(x.v[0], d), quantize_eight(x.v[1], d));
  const __m256i high = _mm256_packs_epi32(quantize_eight(x.v[2], d), quantize_eight(x.v[3], d));
  // Packing keeps the two 128-bit lanes apart: fours of codes come out in the order 0 2 4 6 1 3 5 7.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i codes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), codes);
  // The first 16 codes are in the lower four sums, the others in the upper.
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes);
  const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  sums[0] = reduce_add(_mm256_castsi256_si128(fours));
  sums[1] = reduce_add(_mm256_extracti128_si256(fours, 1));
}

OCTAVO_INLINE uint32_t max_magnitude(const BlockValues& x) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i most = _mm256_and_si256(_mm256_castps_si256(x.v[0]), magnitude);
#pragma GCC unroll 4
  for (int32_t i = 1; i < 4; ++i) {
    most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(x.v[i]), magnitude));
  }
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1))));
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
