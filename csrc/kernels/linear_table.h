// Matrix kernels of one ISA. Included by ISA translation units: <cstddef>, <cstdint> and our own headers only.
//
// Row invariance: an output element is accumulated by one accumulator (float formats: one for even and one for odd k),
// blocks in k order, whatever the number of tokens, the tile a token falls into, the panel range or the thread. Two
// calls that share (weights, token values) give the same bits.
//
// Quantised formats multiply int8 activations: each 32-block of a token has a scale and a code per value. The rounding
// error of a token is mostly that of the few blocks that hold its outlier channels, so kResidualBlocks blocks per token
// have a second term: what the first left over, quantised again. With Precision::kInt8x2 all blocks have one. See
// docs/design/exactness.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/traits.h"
#include "formats/packed.h"

namespace octavo {

inline constexpr int32_t kTileTokens = 8;

// How activations are quantised for the integer formats; the value is the number of int8 terms of an activation.
enum class Precision : int32_t {
  kInt8 = 1,    // one, and a second one for kResidualBlocks blocks of a token
  kInt8x2 = 2,  // two for every block: about 1/250 of the error for twice the products
};
constexpr int32_t num_terms(Precision precision) { return static_cast<int32_t>(precision); }

// How many 32-blocks of a token have a second term, 0 to 4.
inline constexpr int32_t kResidualBlocks = 1;
static_assert(kResidualBlocks >= 0 && kResidualBlocks <= 4);

// One 32-block of the quantised activations of 8 tokens; the same bytes from every ISA. Activations are tiles of 8
// tokens, tile after tile; a tile has 2 * ceil(cols / 64) of these, then kResidualBlocks of ActResidual. Tokens and
// columns of the padding are zero.
// With two terms a tile is that of 4 tokens, and has no ActResidual: place 2 t holds the first term of token t, place
// 2 t + 1 the second. Kernels multiply them as they would two tokens, and add the results.
//
// A format whose codes are off by a constant starts its integer sum at -constant * sum(q) instead of 0: held here ready
// multiplied, the correction is free.
struct ActBlock {
  int8_t q[kTileTokens][32];
  float d[kTileTokens];
  float d_sum[kTileTokens];         // d * sum(q), of both terms: goes with a row's minimum (Q4_1, Q4_K, Q5_1, Q5_K)
  int32_t start8[kTileTokens];      // -8 * sum(q): Q4_0
  int32_t start16[kTileTokens];     // -16 * sum(q): Q5_0
  int32_t start128[kTileTokens];    // -128 * sum(q): Q8_0, IQ4_NL, IQ4_XS
  int32_t start32[2][kTileTokens];  // -32 * sum over q[0..15] and over q[16..31]: Q6_K, shifted Q3_K, the sums of Q2_K
};
static_assert(sizeof(ActBlock) == 480);

// The second term of one block per token: token t's belongs to its 32-block block[t]. That block's own d_sum holds the
// sums of both terms, so a minimum is multiplied once.
struct ActResidual {
  ActBlock terms;
  int32_t block[kTileTokens];
};
static_assert(sizeof(ActResidual) == 512);

// Memory that a later op reads: a product that waits for the multiplier, not for memory, fetches it on the way.
// Regions of equal size, at base + index * stride for each index of a list.
struct FetchQueue {
  const std::byte* base = nullptr;
  size_t stride = 0;
  size_t region_bytes = 0;         // a multiple of 64
  const int32_t* next = nullptr;   // indices still to be fetched: [next, end)
  const int32_t* end = nullptr;
  size_t offset = 0;               // in the region of *next
  int32_t lines_per_tile = 0;      // cache lines to ask for with each tile of tokens
};

// The tokens of a product. Quantised formats read `acts`, made with this precision; F32, F16 and BF16 read `x`
// [tokens, cols] with stride x_stride.
struct MultiplyInput {
  const std::byte* acts;
  Precision precision;
  const float* x;
  size_t x_stride;
  int32_t tokens;
};

struct LinearKernels {
  // Bytes of the quantised form of [tokens, cols] activations. A multiple of 64.
  size_t (*act_bytes)(int32_t tokens, int32_t cols, Precision precision);

  // Quantises tokens [8 * tile_begin, 8 * tile_end), as many as there are: per token and 32-block d = max|x| / 127,
  // q = round_to_nearest_even(x * (127 / max|x|)), from the token's own values alone. d below 2^-120 counts as 0 and gives q = 0, so
  // that flush-to-zero cannot change a result. Infinities count as the largest float; a NaN makes its block's d NaN,
  // and with it the token's outputs.
  // Residuals are those of the kResidualBlocks blocks with the largest d (of equal ones the first; never NaN), in k
  // order: x - d * q, rounded to float once, quantised by the same rule. If blocks are too few, the first residuals are
  // zeros of block 0. Second terms of kInt8x2 are made in the same way, of every block; there a NaN block has two NaN
  // scales.
  // x: [tokens, cols] float with row stride x_stride (elements). acts: the whole matrix's memory, 64-byte aligned.
  void (*quantize)(const float* x, size_t x_stride, int32_t tokens, int32_t cols, Precision precision,
                   int32_t tile_begin, int32_t tile_end, std::byte* acts);

  // out[t, r] = sum_k w[r, k] * act[t, k] for rows of panels [panel_begin, panel_end) and all tokens: all blocks in
  // k order, then the residuals in k order. With kInt8x2: the sum over the first terms plus the sum over the second.
  // out: [tokens, rows] float with row stride out_stride; rows past `weights.rows` are not written.
  // fetch: may be null.
  void (*multiply)(const PackedMatrix& weights, const MultiplyInput& in, int32_t panel_begin, int32_t panel_end,
                   float* out, size_t out_stride, FetchQueue* fetch);

  // out[cols] = dequantised row, times scale: embedding lookup.
  void (*unpack_row)(const PackedMatrix& weights, int32_t row, float scale, float* out);
};

namespace scalar {
extern const LinearKernels linear_kernels;
}
namespace avx2 {
extern const LinearKernels linear_kernels;
}
namespace avx512 {
extern const LinearKernels linear_kernels;
}
namespace avx512_vnni {
extern const LinearKernels linear_kernels;
}

}  // namespace octavo
