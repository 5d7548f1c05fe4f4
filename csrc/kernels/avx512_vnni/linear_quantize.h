// Activations to int8 per 32-block, 16 values a vector. Gives the same bytes as the scalar table.
#pragma once

#include "kernels/avx512_vnni/linear_sources.h"
#include "kernels/generic/act_tile.h"
#include "kernels/linear_table.h"

namespace octavo::avx512_vnni {
namespace {

// Quantises 16 values into out and returns their sum.
OCTAVO_INLINE int32_t quantize_half(__m512 x, float d, int8_t* out) {
  __m512 scaled = _mm512_div_ps(x, _mm512_set1_ps(d));
  scaled = _mm512_min_ps(scaled, _mm512_set1_ps(127.0f));
  scaled = _mm512_max_ps(scaled, _mm512_set1_ps(-127.0f));
  const __m512i q = _mm512_cvt_roundps_epi32(scaled, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(q));
  return _mm512_reduce_add_epi32(q);
}

// Writes token t of a block from its 32 values.
OCTAVO_INLINE void quantize_block(__m512 lo, __m512 hi, int32_t t, ActBlock& block) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i lo_bits = _mm512_and_si512(_mm512_castps_si512(lo), magnitude);
  const __m512i hi_bits = _mm512_and_si512(_mm512_castps_si512(hi), magnitude);
  // Floats without sign order as integers, NaNs above infinity.
  const uint32_t max_bits = _mm512_reduce_max_epu32(_mm512_max_epu32(lo_bits, hi_bits));
  float d = max_bits == kInfBits ? kMaxFloat / 127.0f : __builtin_bit_cast(float, max_bits) / 127.0f;
  if (d < kMinActScale) d = 0.0f;

  int32_t sums[2] = {0, 0};
  if (d == 0.0f || max_bits > kInfBits) {
    __builtin_memset(block.q[t], 0, 32);
  } else {
    sums[0] = quantize_half(lo, d, block.q[t]);
    sums[1] = quantize_half(hi, d, block.q[t] + 16);
  }
  const int32_t sum = sums[0] + sums[1];
  block.d[t] = d;
  block.d_sum[t] = d * static_cast<float>(sum);
  block.start8[t] = -8 * sum;
  block.start16[t] = -16 * sum;
  block.start128[t] = -128 * sum;
  block.start32[0][t] = -32 * sums[0];
  block.start32[1][t] = -32 * sums[1];
}

// 16 values from `column` on; zero past `cols`.
OCTAVO_INLINE __m512 load_columns(const float* x, int32_t column, int32_t cols) {
  const int32_t left = cols - column;
  if (left >= 16) return _mm512_loadu_ps(x + column);
  if (left <= 0) return _mm512_setzero_ps();
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1 << left) - 1), x + column);
}

// What the codes at `q` leave over of 16 values.
OCTAVO_INLINE __m512 subtract_terms(__m512 x, float d, const int8_t* q) {
  x = _mm512_min_ps(x, _mm512_set1_ps(kMaxFloat));
  x = _mm512_max_ps(x, _mm512_set1_ps(-kMaxFloat));
  const __m512i codes = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q)));
  return _mm512_fnmadd_ps(_mm512_set1_ps(d), _mm512_cvtepi32_ps(codes), x);
}

// Sets the residuals' `block` for the tokens of the mask, 0 for the others. Returns per residual the tokens that have a
// block for it: all, unless blocks are too few or NaN.
struct HasBlock {
  __mmask8 tokens[kResidualBlocks + 1];
};
OCTAVO_INLINE HasBlock choose_blocks(const ActBlock* blocks, int32_t num_blocks, __mmask8 tokens,
                                     ActResidual* residuals) {
  __m256 largest[kResidualBlocks + 1];
  __m256i index[kResidualBlocks + 1];
  for (int32_t i = 0; i < kResidualBlocks; ++i) {
    largest[i] = _mm256_set1_ps(-1.0f);
    index[i] = _mm256_set1_epi32(-1);
  }
  for (int32_t b = 0; b < num_blocks; ++b) {
    const __m256 d = _mm256_loadu_ps(blocks[b].d);
    // Insertion: from the first place where d is larger on, every place takes what the one before held.
    __m256 value = d;
    __m256i value_index = _mm256_set1_epi32(b);
#pragma GCC unroll 4
    for (int32_t i = 0; i < kResidualBlocks; ++i) {
      const __mmask8 above = _mm256_cmp_ps_mask(d, largest[i], _CMP_GT_OQ);
      const __m256 displaced = largest[i];
      const __m256i displaced_index = index[i];
      largest[i] = _mm256_mask_mov_ps(largest[i], above, value);
      index[i] = _mm256_mask_mov_epi32(index[i], above, value_index);
      value = _mm256_mask_mov_ps(value, above, displaced);
      value_index = _mm256_mask_mov_epi32(value_index, above, displaced_index);
    }
  }
  HasBlock has_block = {};
  for (int32_t i = 0; i < kResidualBlocks; ++i) {
    for (int32_t j = i + 1; j < kResidualBlocks; ++j) {
      const __m256i lower = _mm256_min_epi32(index[i], index[j]);
      index[j] = _mm256_max_epi32(index[i], index[j]);
      index[i] = lower;
    }
    has_block.tokens[i] = _mm256_mask_cmpge_epi32_mask(tokens, index[i], _mm256_setzero_si256());
    const __m256i chosen = _mm256_maskz_mov_epi32(has_block.tokens[i], index[i]);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(residuals[i].block), chosen);
  }
  return has_block;
}

OCTAVO_INLINE void quantize_residual(const float* row, int32_t cols, int32_t t, ActBlock* blocks,
                                     ActResidual& residual) {
  const int32_t b = residual.block[t];
  ActBlock& block = blocks[b];
  const __m512 lo = subtract_terms(load_columns(row, 32 * b, cols), block.d[t], block.q[t]);
  const __m512 hi = subtract_terms(load_columns(row, 32 * b + 16, cols), block.d[t], block.q[t] + 16);
  quantize_block(lo, hi, t, residual.terms);
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
      for (int32_t b = 0; b < num_blocks; ++b) {
        quantize_block(load_columns(row, 32 * b, cols), load_columns(row, 32 * b + 16, cols), t, blocks[b]);
      }
    }
    const auto real = static_cast<__mmask8>((1 << tile_tokens) - 1);
    const HasBlock has_block = choose_blocks(blocks, num_blocks, real, residuals);
    for (int32_t i = 0; i < kResidualBlocks; ++i) {
      for (int32_t t = 0; t < tile_tokens; ++t) {
        if (has_block.tokens[i] >> t & 1) quantize_residual(x + (first + t) * x_stride, cols, t, blocks, residuals[i]);
      }
    }
  }
}

}  // namespace
}  // namespace octavo::avx512_vnni
