// Included inside `namespace octavo::<isa> { namespace {` after the ISA's vocabulary: no include, no namespace here.
// Activations to int8 per 32-block; every ISA gives the same bytes. The vocabulary is linear_tile.h, quantize_types.h and
//
//   kNarrowestTile                         as for linear_driver.h
//   BlockValues                            the 32 values of a block
//   load_block(row, block, cols)           a token's values, zero past `cols`
//   max_magnitudes(values[8])              of each the largest |x| as bits: floats without sign order as integers, NaNs last
//   any(mask)                              whether a lane of an Ints8 comparison is true
//   quantize_values(values[8], inverse, q[8], sums)   codes of 8 x 32 values, and their sums; any if not finite
//   subtract_terms(block, t, values)       takes off the values what token t's codes stand for, rounding once

// A block with an infinity or a NaN in it.
inline void quantize_strange(const BlockValues& values, int32_t lane, int8_t* q, Scales& scales) {
  float x[32];
  __builtin_memcpy(x, &values, sizeof(x));
  float largest = 0.0f;
  bool has_nan = false;
  for (const float value : x) {
    has_nan |= value != value;
    const float magnitude = __builtin_fabsf(value) < kMaxFloat ? __builtin_fabsf(value) : kMaxFloat;
    largest = magnitude > largest ? magnitude : largest;
  }
  scales.d[lane] = has_nan ? __builtin_nanf("") : largest / 127.0f;
  const float inverse = 127.0f / largest;
  for (int32_t half = 0; half < 2; ++half) {
    int32_t sum = 0;
    for (int32_t k = 16 * half; k < 16 * half + 16; ++k) {
      float scaled = x[k] * inverse;
      scaled = scaled < 127.0f ? scaled : 127.0f;
      scaled = scaled > -127.0f ? scaled : -127.0f;
      // Adding 1.5 * 2^23 rounds to nearest even and leaves the integer in the low bits.
      const int32_t code = has_nan ? 0 : __builtin_bit_cast(int32_t, scaled + 12582912.0f) - 0x4b400000;
      q[k] = static_cast<int8_t>(code);
      sum += code;
    }
    scales.sums[half][lane] = sum;
  }
}

// Eight blocks at once, whosever they are: the steps that a single block spends waiting overlap.
OCTAVO_INLINE Scales quantize_eight(const BlockValues (&x)[8], int8_t* const (&q)[8]) {
  const Ints8 bits = max_magnitudes(x);
  const Floats8 largest = __builtin_bit_cast(Floats8, bits);
  const Floats8 d = largest / 127.0f;
  const Ints8 is_zero = d < kMinActScale;
  Scales scales;
  scales.d = is_zero ? Floats8{} : d;
  quantize_values(x, is_zero ? Floats8{} : 127.0f / largest, q, scales.sums);
  const Ints8 is_strange = bits >= static_cast<int32_t>(kInfBits);
  if (any(is_strange)) [[unlikely]] {
    for (int32_t i = 0; i < 8; ++i) {
      if (is_strange[i]) quantize_strange(x[i], i, q[i], scales);
    }
  }
  return scales;
}

// Lane i belongs to token i of the block.
OCTAVO_INLINE void store_tokens(const Scales& scales, ActBlock& block) {
  const Ints8 sum = scales.sums[0] + scales.sums[1];
  const Floats8 d_sum = scales.d * __builtin_convertvector(sum, Floats8);
  const auto put = [](const auto& lanes, auto& to) { __builtin_memcpy(&to, &lanes, sizeof(lanes)); };
  put(scales.d, block.d);
  put(d_sum, block.d_sum);
  put(-8 * sum, block.start8);
  put(-16 * sum, block.start16);
  put(-128 * sum, block.start128);
  put(-32 * scales.sums[0], block.start32[0]);
  put(-32 * scales.sums[1], block.start32[1]);
}

// One lane, as token t of a block.
OCTAVO_INLINE void store_token(const Scales& scales, int32_t lane, int32_t t, ActBlock& block) {
  const int32_t sums[2] = {scales.sums[0][lane], scales.sums[1][lane]};
  const int32_t sum = sums[0] + sums[1];
  block.d[t] = scales.d[lane];
  block.d_sum[t] = scales.d[lane] * static_cast<float>(sum);
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

// Up to 8 blocks of one token, at place t: block b on.
struct Run {
  BlockValues x[8];
  int8_t* q[8];
  int8_t unused[32];
  int32_t count;
};

OCTAVO_INLINE void point_to(ActBlock* blocks, int32_t t, Run& run) {
#pragma GCC unroll 8
  for (int32_t i = 0; i < 8; ++i) run.q[i] = i < run.count ? blocks[i].q[t] : run.unused;
}

OCTAVO_INLINE void quantize_run(ActBlock* blocks, int32_t t, Run& run) {
  point_to(blocks, t, run);
  const Scales scales = quantize_eight(run.x, run.q);
  for (int32_t i = 0; i < run.count; ++i) store_token(scales, i, t, blocks[i]);
}

// A token's values at place t of all blocks; with `is_twice` what they leave over at place t + 1.
OCTAVO_INLINE void quantize_token(const float* row, int32_t cols, int32_t t, bool is_twice, ActBlock* blocks) {
  const int32_t num_blocks = num_padded_blocks(cols);
  Run run;
  for (int32_t b = 0; b < num_blocks; b += 8) {
    run.count = num_blocks - b < 8 ? num_blocks - b : 8;
#pragma GCC unroll 8
    for (int32_t i = 0; i < 8; ++i) run.x[i] = load_block(row, b + i, cols);
    quantize_run(blocks + b, t, run);
    if (!is_twice) continue;
    for (int32_t i = 0; i < run.count; ++i) subtract_terms(blocks[b + i], t, run.x[i]);
    quantize_run(blocks + b, t + 1, run);
  }
}

// All 8 tokens of a tile.
OCTAVO_INLINE void quantize_tokens(const float* x, size_t x_stride, int32_t cols, ActBlock* blocks) {
  for (int32_t b = 0; b < num_padded_blocks(cols); ++b) {
    ActBlock& block = blocks[b];
    const BlockValues values[8] = {load_block(x, b, cols),
                                   load_block(x + x_stride, b, cols),
                                   load_block(x + 2 * x_stride, b, cols),
                                   load_block(x + 3 * x_stride, b, cols),
                                   load_block(x + 4 * x_stride, b, cols),
                                   load_block(x + 5 * x_stride, b, cols),
                                   load_block(x + 6 * x_stride, b, cols),
                                   load_block(x + 7 * x_stride, b, cols)};
    int8_t* const q[8] = {block.q[0], block.q[1], block.q[2], block.q[3],
                          block.q[4], block.q[5], block.q[6], block.q[7]};
    store_tokens(quantize_eight(values, q), block);
  }
}

// The second terms of one chosen block per token; a token without one keeps zeros.
OCTAVO_INLINE void quantize_residuals(const float* x, size_t x_stride, int32_t tokens, int32_t cols,
                                      const int32_t (&chosen)[kTileTokens], ActBlock* blocks, ActResidual& residual) {
  BlockValues values[8];
  int8_t unused[32];
  int8_t* q[8];
#pragma GCC unroll 8
  for (int32_t t = 0; t < 8; ++t) {
    const bool has_block = t < tokens && chosen[t] >= 0;
    const int32_t b = has_block ? chosen[t] : 0;
    values[t] = load_block(has_block ? x + t * x_stride : x, b, has_block ? cols : 0);
    if (has_block) subtract_terms(blocks[b], t, values[t]);
    q[t] = has_block ? residual.terms.q[t] : unused;
    residual.block[t] = b;
  }
  store_tokens(quantize_eight(values, q), residual.terms);
  for (int32_t t = 0; t < tokens; ++t) {
    if (chosen[t] >= 0) blocks[chosen[t]].d_sum[t] += residual.terms.d_sum[t];
  }
}

// x: the tile's first token.
OCTAVO_INLINE void quantize_tile(const float* x, size_t x_stride, int32_t tokens, int32_t cols, ActBlock* blocks) {
  const int32_t num_blocks = num_padded_blocks(cols);
  auto* residuals = reinterpret_cast<ActResidual*>(blocks + num_blocks);
  // Padding is zero, and so is a residual without a block. The narrowest tile has none.
  if (tokens < kTileTokens && tokens != kNarrowestTile) __builtin_memset(blocks, 0, num_blocks * sizeof(ActBlock));
  __builtin_memset(residuals, 0, kResidualBlocks * sizeof(ActResidual));
  if (tokens == kTileTokens) {
    quantize_tokens(x, x_stride, cols, blocks);
  } else {
    for (int32_t t = 0; t < tokens; ++t) quantize_token(x + t * x_stride, cols, t, false, blocks);
  }
  const Chosen chosen = choose_blocks(blocks, num_blocks);
  for (int32_t i = 0; i < kResidualBlocks; ++i) {
    quantize_residuals(x, x_stride, tokens, cols, chosen.block[i], blocks, residuals[i]);
  }
}

// The same with two terms, for a tile of 4 tokens.
OCTAVO_INLINE void quantize_tile_twice(const float* x, size_t x_stride, int32_t tokens, int32_t cols,
                                       ActBlock* blocks) {
  if (tokens < kTileTokens / 2) __builtin_memset(blocks, 0, num_padded_blocks(cols) * sizeof(ActBlock));
  for (int32_t t = 0; t < tokens; ++t) quantize_token(x + t * x_stride, cols, 2 * t, true, blocks);
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
