// Sizes of quantised activations, and the constants of their quantisation. Everything has internal linkage: each ISA's
// translation units compile their own copy.
#pragma once

#include "kernels/generic/packed_codes.h"
#include "kernels/linear_table.h"

namespace octavo {
namespace {

constexpr float kMaxFloat = 0x1.fffffep127f;
constexpr float kMinActScale = 0x1p-120f;
constexpr uint32_t kInfBits = 0x7f800000;

// A tile of 8 tokens, or of 4 with two terms: a block per 32 columns, then the residuals.
inline size_t act_tile_bytes(int32_t cols, int32_t terms) {
  const size_t residuals = terms == 1 ? kResidualBlocks * sizeof(ActResidual) : 0;
  return num_padded_blocks(cols) * sizeof(ActBlock) + residuals;
}

inline size_t act_bytes(int32_t tokens, int32_t cols, Precision precision) {
  const int32_t terms = num_terms(precision);
  const size_t tiles = (static_cast<size_t>(tokens) * terms + kTileTokens - 1) / kTileTokens;
  return tiles * act_tile_bytes(cols, terms);
}

}  // namespace
}  // namespace octavo
