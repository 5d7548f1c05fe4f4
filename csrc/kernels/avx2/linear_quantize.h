// Activations to int8 per 32-block, 8 values a vector. Gives the same bytes as the scalar table.
#pragma once

#include "kernels/avx2/linear_sources.h"
#include "kernels/generic/act_tile.h"
#include "kernels/linear_table.h"

namespace octavo::avx2 {
namespace {

// The 32 values of a block.
struct BlockValues {
  __m256 v[4];
};

OCTAVO_INLINE __m256i quantize_eight(__m256 x, __m256 d) {
  __m256 scaled = _mm256_div_ps(x, d);
  scaled = _mm256_min_ps(scaled, _mm256_set1_ps(127.0f));
  scaled = _mm256_max_ps(scaled, _mm256_set1_ps(-127.0f));
  return _mm256_cvtps_epi32(_mm256_round_ps(scaled, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// The codes of a block, in order.
OCTAVO_INLINE __m256i quantize_values(const BlockValues& x, float scale) {
  const __m256 d = _mm256_set1_ps(scale);
  const __m256i low = _mm256_packs_epi32(quantize_eight(x.v[0], d), quantize_eight(x.v[1], d));
  const __m256i high = _mm256_packs_epi32(quantize_eight(x.v[2], d), quantize_eight(x.v[3], d));
  // Packing keeps the two 128-bit lanes apart: fours of codes come out in the order 0 2 4 6 1 3 5 7.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
}

// Of 4 integers.
OCTAVO_INLINE int32_t reduce_add(__m128i x) {
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}

// The largest |x| as bits: floats without sign order as integers, NaNs above infinity.
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

// Writes token t of a block from its 32 values.
OCTAVO_INLINE void quantize_block(const BlockValues& x, int32_t t, ActBlock& block) {
  const uint32_t max_bits = max_magnitude(x);
  float d = max_bits == kInfBits ? kMaxFloat / 127.0f : __builtin_bit_cast(float, max_bits) / 127.0f;
  if (d < kMinActScale) d = 0.0f;

  __m256i codes = _mm256_setzero_si256();
  if (d != 0.0f && max_bits <= kInfBits) codes = quantize_values(x, d);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(block.q[t]), codes);
  // The first 16 codes are in the lower four sums, the others in the upper.
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes);
  const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  const int32_t sums[2] = {reduce_add(_mm256_castsi256_si128(fours)), reduce_add(_mm256_extracti128_si256(fours, 1))};
  const int32_t sum = sums[0] + sums[1];
  block.d[t] = d;
  block.d_sum[t] = d * static_cast<float>(sum);
  block.start8[t] = -8 * sum;
  block.start16[t] = -16 * sum;
  block.start128[t] = -128 * sum;
  block.start32[0][t] = -32 * sums[0];
  block.start32[1][t] = -32 * sums[1];
}

// Ones in the first n of 8 lanes, for any n.
OCTAVO_INLINE __m256i first_lanes(int32_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

// The values of a block; zero past `cols`.
OCTAVO_INLINE BlockValues load_block(const float* row, int32_t block, int32_t cols) {
  const float* x = row + 32 * static_cast<size_t>(block);
  const int32_t left = cols - 32 * block;
  if (left >= 32) {
    return {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8), _mm256_loadu_ps(x + 16), _mm256_loadu_ps(x + 24)};
  }
  return {_mm256_maskload_ps(x, first_lanes(left)), _mm256_maskload_ps(x + 8, first_lanes(left - 8)),
          _mm256_maskload_ps(x + 16, first_lanes(left - 16)), _mm256_maskload_ps(x + 24, first_lanes(left - 24))};
}

// What the block's codes leave over.
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

OCTAVO_INLINE __m256i select(__m256i mask, __m256i a, __m256i b) { return _mm256_blendv_epi8(b, a, mask); }

// Sets the residuals' `block` for the first `tokens` tokens, 0 for the others. Returns per residual the tokens that have
// a block for it, as bits: all, unless blocks are too few or NaN.
struct HasBlock {
  uint32_t tokens[kResidualBlocks + 1];
};
OCTAVO_INLINE HasBlock choose_blocks(const ActBlock* blocks, int32_t num_blocks, int32_t tokens,
                                     ActResidual* residuals) {
  __m256i largest[kResidualBlocks + 1];  // floats
  __m256i index[kResidualBlocks + 1];
  for (int32_t i = 0; i < kResidualBlocks; ++i) {
    largest[i] = _mm256_castps_si256(_mm256_set1_ps(-1.0f));
    index[i] = _mm256_set1_epi32(-1);
  }
  for (int32_t b = 0; b < num_blocks; ++b) {
    const __m256 d = _mm256_loadu_ps(blocks[b].d);
    // Insertion: from the first place where d is larger on, every place takes what the one before held.
    __m256i value = _mm256_castps_si256(d);
    __m256i value_index = _mm256_set1_epi32(b);
#pragma GCC unroll 4
    for (int32_t i = 0; i < kResidualBlocks; ++i) {
      const __m256i above = _mm256_castps_si256(_mm256_cmp_ps(d, _mm256_castsi256_ps(largest[i]), _CMP_GT_OQ));
      const __m256i displaced = largest[i];
      const __m256i displaced_index = index[i];
      largest[i] = select(above, value, displaced);
      index[i] = select(above, value_index, displaced_index);
      value = select(above, displaced, value);
      value_index = select(above, displaced_index, value_index);
    }
  }
  HasBlock has_block = {};
  for (int32_t i = 0; i < kResidualBlocks; ++i) {
    for (int32_t j = i + 1; j < kResidualBlocks; ++j) {
      const __m256i lower = _mm256_min_epi32(index[i], index[j]);
      index[j] = _mm256_max_epi32(index[i], index[j]);
      index[i] = lower;
    }
    const __m256i chosen = _mm256_cmpgt_epi32(index[i], _mm256_set1_epi32(-1));
    const __m256i has = _mm256_and_si256(chosen, first_lanes(tokens));
    has_block.tokens[i] = static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(has)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(residuals[i].block), _mm256_and_si256(has, index[i]));
  }
  return has_block;
}

OCTAVO_INLINE void quantize_residual(const float* row, int32_t cols, int32_t t, ActBlock* blocks,
                                     ActResidual& residual) {
  const int32_t b = residual.block[t];
  ActBlock& block = blocks[b];
  BlockValues values = load_block(row, b, cols);
  subtract_terms(block, t, values);
  quantize_block(values, t, residual.terms);
  block.d_sum[t] += residual.terms.d_sum[t];
}

void quantize(const float* x, size_t x_stride, int32_t tokens, int32_t cols, int32_t tile_begin, int32_t tile_end,
              std::byte* acts) {
  const int32_t num_blocks = num_padded_blocks(cols);
  for (int32_t tile = tile_begin; tile < tile_end; ++tile) {
    ActBlock* blocks = reinterpret_cast<ActBlock*>(acts + tile * act_tile_bytes(cols));
    ActResidual* residuals = reinterpret_cast<ActResidual*>(blocks + num_blocks);
    const int32_t first = tile * kTileTokens;
    const int32_t tile_tokens = tokens - first < kTileTokens ? tokens - first : kTileTokens;
    // Padding is zero, and so is a residual without a block.
    if (tile_tokens < kTileTokens) __builtin_memset(blocks, 0, num_blocks * sizeof(ActBlock));
    __builtin_memset(residuals, 0, kResidualBlocks * sizeof(ActResidual));
    for (int32_t t = 0; t < tile_tokens; ++t) {
      const float* row = x + (first + t) * x_stride;
      for (int32_t b = 0; b < num_blocks; ++b) quantize_block(load_block(row, b, cols), t, blocks[b]);
    }
    const HasBlock has_block = choose_blocks(blocks, num_blocks, tile_tokens, residuals);
    for (int32_t i = 0; i < kResidualBlocks; ++i) {
      for (int32_t t = 0; t < tile_tokens; ++t) {
        if (has_block.tokens[i] >> t & 1) quantize_residual(x + (first + t) * x_stride, cols, t, blocks, residuals[i]);
      }
    }
  }
}

}  // namespace
}  // namespace octavo::avx2
