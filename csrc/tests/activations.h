// Activations for the quantisation and product tests, and how to read quantised ones.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "kernels/linear_table.h"
#include "weights.h"

namespace octavo_test {

using octavo::ActBlock;
using octavo::ActResidual;
using octavo::kResidualBlocks;
using octavo::kTileTokens;
using octavo::LinearKernels;
using octavo::Precision;

inline constexpr Precision kPrecisions[] = {Precision::kInt8, Precision::kInt8x2};

inline int32_t num_tiles(int32_t tokens) { return (tokens + kTileTokens - 1) / kTileTokens; }
inline int32_t num_blocks(int32_t cols) { return (cols + 63) / 64 * 2; }

inline Aligned quantize(const LinearKernels& kernels, const float* x, size_t stride, int32_t tokens, int32_t cols,
                        Precision precision = Precision::kInt8) {
  Aligned acts(kernels.act_bytes(tokens, cols, precision));
  kernels.quantize(x, stride, tokens, cols, precision, 0, num_tiles(tokens), acts.bytes());
  return acts;
}

// One term of a token: its tile's blocks, and its place in them.
struct Term {
  const ActBlock* blocks;
  int32_t place;

  const ActBlock& block(int32_t b) const { return blocks[b]; }
  double value(int32_t k) const {
    return static_cast<double>(blocks[k / 32].d[place]) * blocks[k / 32].q[place][k % 32];
  }
};

inline Term term_at(const Aligned& acts, int32_t token, int32_t term, int32_t cols, Precision precision) {
  const int32_t place = token * octavo::num_terms(precision) + term;
  const size_t residuals = precision == Precision::kInt8 ? kResidualBlocks * sizeof(ActResidual) : 0;
  const size_t tile_bytes = num_blocks(cols) * sizeof(ActBlock) + residuals;
  const std::byte* tile = acts.bytes() + place / kTileTokens * tile_bytes;
  return {reinterpret_cast<const ActBlock*>(tile), place % kTileTokens};
}

inline const ActBlock& block_at(const Aligned& acts, int32_t token, int32_t block, int32_t cols) {
  return term_at(acts, token, 0, cols, Precision::kInt8).block(block);
}

inline const ActResidual& residual_at(const Aligned& acts, int32_t token, int32_t i, int32_t cols) {
  const ActBlock* end = term_at(acts, token, 0, cols, Precision::kInt8).blocks + num_blocks(cols);
  return reinterpret_cast<const ActResidual*>(end)[i];
}

enum class Activations { kGaussian, kExtremes, kOutlierChannels };

// Gaussian with a few larger values; values whose codes are all -127 and 127; or a channel far above all others, the
// same one for most tokens.
inline std::vector<float> make_activations(int32_t tokens, int32_t cols, Activations kind, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(tokens) * cols);
  for (float& value : x) {
    const uint32_t draw = random();
    if (kind == Activations::kExtremes) {
      value = draw % 2 ? 3.0f : -3.0f;
    } else {
      value = normal(random) * (draw % 200 == 0 ? 3.0f : 1.0f);
    }
  }
  if (kind == Activations::kOutlierChannels) {
    for (int32_t token = 0; token < tokens; ++token) {
      const int32_t channel = token % 11 == 5 ? static_cast<int32_t>(random() % cols) : cols * 2 / 3;
      x[static_cast<size_t>(token) * cols + channel] = 60.0f;
    }
  }
  return x;
}

}  // namespace octavo_test
