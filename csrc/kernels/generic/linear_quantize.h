// Included inside `namespace octavo::<isa> { namespace {` after the ISA's vocabulary: no include, no namespace here.
// Activations to int8 per 32-block; every ISA gives the same bytes. The vocabulary is linear_tile.h and
//
//   BlockValues                            the 32 values of a block
//   load_block(row, block, cols)           a token's values, zero past `cols`
//   max_magnitude(values)                  the largest |x| as bits: floats without sign order as integers, NaNs last
//   quantize_values(values, d, q, sums)    codes of 32 values, and their sums: [0] of the first 16, [1] of the others
//   subtract_terms(block, t, values)       takes off the values what token t's codes stand for, rounding once

// Writes token t of a block.
OCTAVO_INLINE void quantize_block(const BlockValues& x, int32_t t, ActBlock& block) {
  const uint32_t max_bits = max_magnitude(x);
  float d = max_bits == kInfBits ? kMaxFloat / 127.0f : __builtin_bit_cast(float, max_bits) / 127.0f;
  if (d < kMinActScale) d = 0.0f;

  int32_t sums[2] = {0, 0};
  if (d == 0.0f || max_bits > kInfBits) {
    __builtin_memset(block.q[t], 0, 32);
  } else {
    quantize_values(x, d, block.q[t], sums);
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

// Per residual and token the block it belongs to; -1 if there are too few blocks that are not NaN. A token's are in k
// order, the missing ones first.
struct Chosen {
  int32_t block[kResidualBlocks + 1][kTileTokens];
};

using Floats8 [[gnu::vector_size(32)]] = float;
using Ints8 [[gnu::vector_size(32)]] = int32_t;

// The kResidualBlocks blocks with the largest d of each of 8 tokens, by insertion.
OCTAVO_INLINE Chosen choose_blocks(const ActBlock* blocks, int32_t num_blocks) {
  Floats8 largest[kResidualBlocks + 1];
  Ints8 index[kResidualBlocks + 1];
  for (int32_t i = 0; i < kResidualBlocks; ++i) {
    largest[i] = Floats8{} - 1.0f;
    index[i] = Ints8{} - 1;
  }
  for (int32_t b = 0; b < num_blocks; ++b) {
    Floats8 d;
    __builtin_memcpy(&d, blocks[b].d, sizeof(d));
    // From the first place where d is larger on, every place takes what the one before held.
    Floats8 value = d;
    Ints8 value_index = Ints8{} + b;
#pragma GCC unroll 4
    for (int32_t i = 0; i < kResidualBlocks; ++i) {
      const Ints8 above = d > largest[i];
      const Floats8 displaced = largest[i];
      const Ints8 displaced_index = index[i];
      largest[i] = above ? value : displaced;
      index[i] = above ? value_index : displaced_index;
      value = above ? displaced : value;
      value_index = above ? displaced_index : value_index;
    }
  }
  Chosen chosen = {};
  for (int32_t i = 0; i < kResidualBlocks; ++i) {
    for (int32_t j = i + 1; j < kResidualBlocks; ++j) {
      const Ints8 lower = index[i] < index[j] ? index[i] : index[j];
      index[j] = index[i] < index[j] ? index[j] : index[i];
      index[i] = lower;
    }
    __builtin_memcpy(chosen.block[i], &index[i], sizeof(index[i]));
  }
  return chosen;
}

OCTAVO_INLINE void quantize_residual(const float* row, int32_t cols, int32_t t, ActBlock& block,
                                     int32_t index, ActResidual& residual) {
  BlockValues values = load_block(row, index, cols);
  subtract_terms(block, t, values);
  quantize_block(values, t, residual.terms);
  block.d_sum[t] += residual.terms.d_sum[t];
  residual.block[t] = index;
}

// x: the tile's first token.
OCTAVO_INLINE void quantize_tile(const float* x, size_t x_stride, int32_t tokens, int32_t cols, ActBlock* blocks) {
  const int32_t num_blocks = num_padded_blocks(cols);
  auto* residuals = reinterpret_cast<ActResidual*>(blocks + num_blocks);
  // Padding is zero, and so is a residual without a block.
  if (tokens < kTileTokens) __builtin_memset(blocks, 0, num_blocks * sizeof(ActBlock));
  __builtin_memset(residuals, 0, kResidualBlocks * sizeof(ActResidual));
  for (int32_t t = 0; t < tokens; ++t) {
    const float* row = x + t * x_stride;
    for (int32_t b = 0; b < num_blocks; ++b) quantize_block(load_block(row, b, cols), t, blocks[b]);
  }
  const Chosen chosen = choose_blocks(blocks, num_blocks);
  for (int32_t i = 0; i < kResidualBlocks; ++i) {
    for (int32_t t = 0; t < tokens; ++t) {
      const int32_t b = chosen.block[i][t];
      if (b >= 0) quantize_residual(x + t * x_stride, cols, t, blocks[b], b, residuals[i]);
    }
  }
}

// The same with two terms, for a tile of 4 tokens.
OCTAVO_INLINE void quantize_tile_twice(const float* x, size_t x_stride, int32_t tokens, int32_t cols,
                                       ActBlock* blocks) {
  const int32_t num_blocks = num_padded_blocks(cols);
  if (tokens < kTileTokens / 2) __builtin_memset(blocks, 0, num_blocks * sizeof(ActBlock));
  for (int32_t t = 0; t < tokens; ++t) {
    const float* row = x + t * x_stride;
    for (int32_t b = 0; b < num_blocks; ++b) {
      BlockValues values = load_block(row, b, cols);
      quantize_block(values, 2 * t, blocks[b]);
      subtract_terms(blocks[b], 2 * t, values);
      quantize_block(values, 2 * t + 1, blocks[b]);
    }
  }
}

void quantize(const float* x, size_t x_stride, int32_t tokens, int32_t cols, Precision precision, int32_t tile_begin,
              int32_t tile_end, std::byte* acts) {
  const int32_t terms = num_terms(precision);
  const int32_t tile_tokens = kTileTokens / terms;
  const size_t tile_bytes = act_tile_bytes(cols, terms);
  for (int32_t tile = tile_begin * terms; tile < tile_end * terms && tile * tile_tokens < tokens; ++tile) {
    const int32_t first = tile * tile_tokens;
    const int32_t count = tokens - first < tile_tokens ? tokens - first : tile_tokens;
    auto* blocks = reinterpret_cast<ActBlock*>(acts + tile * tile_bytes);
    if (precision == Precision::kInt8) {
      quantize_tile(x + first * x_stride, x_stride, count, cols, blocks);
    } else {
      quantize_tile_twice(x + first * x_stride, x_stride, count, cols, blocks);
    }
  }
}
