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

// A tile of 8 tokens: a block per 32 columns, then the residuals.
inline size_t act_tile_bytes(int32_t cols) {
  return num_padded_blocks(cols) * sizeof(ActBlock) + kResidualBlocks * sizeof(ActResidual);
}

inline size_t act_bytes(int32_t tokens, int32_t cols) {
  const size_t tiles = (static_cast<size_t>(tokens) + kTileTokens - 1) / kTileTokens;
  return tiles * act_tile_bytes(cols);
}

}  // namespace
}  // namespace octavo
