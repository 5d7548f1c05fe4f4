// Dequantisation of every weight format, written from the format descriptions alone.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "formats/bf16.h"
#include "formats/f16.h"
#include "formats/iq4_nl.h"
#include "formats/iq4_xs.h"
#include "formats/packed.h"
#include "formats/q2_k.h"
#include "formats/q3_k.h"
#include "formats/q4_0.h"
#include "formats/q4_1.h"
#include "formats/q4_k.h"
#include "formats/q5_0.h"
#include "formats/q5_1.h"
#include "formats/q5_k.h"
#include "formats/q6_k.h"
#include "formats/q8_0.h"

namespace octavo_test {

using octavo::WeightFormat;

struct Weight {
  float value;
  float magnitude;  // |scale * code| + |minimum|: what rounding errors are relative to
};

inline Weight plain(float value) { return {value, std::fabs(value)}; }

inline Weight symmetric(float scale, int32_t code, int32_t largest) {
  return {scale * static_cast<float>(code), std::fabs(scale) * static_cast<float>(largest)};
}

inline Weight shifted(float scale, int32_t code, float min) {
  const float product = scale * static_cast<float>(code);
  return {product + min, std::fabs(product) + std::fabs(min)};
}

inline int32_t nibble_of_16(const uint8_t (&codes)[16], int32_t k) {
  return k < 16 ? codes[k] % 16 : codes[k - 16] / 16;
}

inline int32_t fifth_bit(const uint8_t (&fifth)[4], int32_t k) { return 16 * (fifth[k / 8] >> (k % 8) & 1); }

inline int32_t iq4_level(int32_t code) {
  constexpr int32_t kLevels[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  return kLevels[code];
}

// Scale and minimum of 32-block i of Q4_K and Q5_K.
struct ScaleAndMin {
  float scale;
  float min;
};

template <class Block>
ScaleAndMin scale_and_min(const Block& block, int32_t i) {
  // The 12 bytes as three little-endian words: scales 0..3, mins 0..3, then the low nibbles of the other four of each.
  int32_t scale = block.scales[i % 4] & 63;
  int32_t min = block.scales[4 + i % 4] & 63;
  if (i >= 4) {
    scale = (block.scales[8 + i % 4] % 16) + 16 * (block.scales[i % 4] / 64);
    min = (block.scales[8 + i % 4] / 16) + 16 * (block.scales[4 + i % 4] / 64);
  }
  return {octavo::f16_to_f32(block.d) * static_cast<float>(scale),
          octavo::f16_to_f32(block.dmin) * static_cast<float>(min)};
}

inline Weight dequantise(const octavo::BlockQ2_K& block, int32_t k) {
  const int32_t pair = block.scales[k / 16];
  const int32_t code = block.codes[k / 128 * 32 + k % 32] >> (k % 128 / 32 * 2) & 3;
  return shifted(octavo::f16_to_f32(block.d) * static_cast<float>(pair % 16), code,
                 -octavo::f16_to_f32(block.dmin) * static_cast<float>(pair / 16));
}

inline Weight dequantise(const octavo::BlockQ3_K& block, int32_t k) {
  uint32_t words[3];
  std::memcpy(words, block.scales, 12);
  const uint32_t all_scales[4] = {
      (words[0] & 0x0f0f0f0f) | (words[2] & 0x03030303) << 4,
      (words[1] & 0x0f0f0f0f) | (words[2] >> 2 & 0x03030303) << 4,
      (words[0] >> 4 & 0x0f0f0f0f) | (words[2] >> 4 & 0x03030303) << 4,
      (words[1] >> 4 & 0x0f0f0f0f) | (words[2] >> 6 & 0x03030303) << 4,
  };
  const auto scale = static_cast<int32_t>(all_scales[k / 64] >> (k / 16 % 4 * 8) & 0xff) - 32;
  const int32_t low = block.low[k / 128 * 32 + k % 32] >> (k % 128 / 32 * 2) & 3;
  const bool has_third = (block.third[k % 32] >> (k / 32) & 1) != 0;
  return symmetric(octavo::f16_to_f32(block.d) * static_cast<float>(scale), has_third ? low : low - 4, 4);
}

inline Weight dequantise(const octavo::BlockQ4_0& block, int32_t k) {
  return symmetric(octavo::f16_to_f32(block.d), nibble_of_16(block.codes, k) - 8, 8);
}

inline Weight dequantise(const octavo::BlockQ4_1& block, int32_t k) {
  return shifted(octavo::f16_to_f32(block.d), nibble_of_16(block.codes, k), octavo::f16_to_f32(block.m));
}

inline Weight dequantise(const octavo::BlockQ4_K& block, int32_t k) {
  const ScaleAndMin factors = scale_and_min(block, k / 32);
  const uint8_t pair = block.nibbles[k / 64 * 32 + k % 32];
  return shifted(factors.scale, k / 32 % 2 ? pair / 16 : pair % 16, -factors.min);
}

inline Weight dequantise(const octavo::BlockQ5_0& block, int32_t k) {
  const int32_t code = nibble_of_16(block.nibbles, k) + fifth_bit(block.fifth, k);
  return symmetric(octavo::f16_to_f32(block.d), code - 16, 16);
}

inline Weight dequantise(const octavo::BlockQ5_1& block, int32_t k) {
  const int32_t code = nibble_of_16(block.nibbles, k) + fifth_bit(block.fifth, k);
  return shifted(octavo::f16_to_f32(block.d), code, octavo::f16_to_f32(block.m));
}

inline Weight dequantise(const octavo::BlockQ5_K& block, int32_t k) {
  const ScaleAndMin factors = scale_and_min(block, k / 32);
  const uint8_t pair = block.nibbles[k / 64 * 32 + k % 32];
  const int32_t fifth = block.fifth[k % 32] >> (k / 32) & 1;
  return shifted(factors.scale, (k / 32 % 2 ? pair / 16 : pair % 16) + 16 * fifth, -factors.min);
}

inline Weight dequantise(const octavo::BlockQ6_K& block, int32_t k) {
  const int32_t low_byte = block.nibbles[k / 128 * 64 + k % 64];
  const int32_t low = k % 128 < 64 ? low_byte % 16 : low_byte / 16;
  const int32_t high = block.upper[k / 128 * 32 + k % 32] >> (k % 128 / 32 * 2) & 3;
  const float scale = octavo::f16_to_f32(block.d) * static_cast<float>(block.scales[k / 16]);
  return symmetric(scale, low + 16 * high - 32, 32);
}

inline Weight dequantise(const octavo::BlockQ8_0& block, int32_t k) {
  return symmetric(octavo::f16_to_f32(block.d), block.codes[k], 128);
}

inline Weight dequantise(const octavo::BlockIQ4_NL& block, int32_t k) {
  return symmetric(octavo::f16_to_f32(block.d), iq4_level(nibble_of_16(block.codes, k)), 128);
}

inline Weight dequantise(const octavo::BlockIQ4_XS& block, int32_t k) {
  const int32_t i = k / 32;
  const int32_t low = i % 2 ? block.scales_low[i / 2] / 16 : block.scales_low[i / 2] % 16;
  const int32_t scale = low + 16 * (block.scales_high >> 2 * i & 3) - 32;
  return symmetric(octavo::f16_to_f32(block.d) * static_cast<float>(scale),
                   iq4_level(nibble_of_16(block.codes[i], k % 32)), 128);
}

template <class T>
T read_block(const std::byte* source, int32_t index) {
  T block;
  std::memcpy(&block, source + static_cast<size_t>(index) * sizeof(T), sizeof(T));
  return block;
}

template <class Block>
Weight dequantise_in_row(const std::byte* row, int32_t block_cols, int32_t k) {
  return dequantise(read_block<Block>(row, k / block_cols), k % block_cols);
}

// Weight k of a row whose bytes start at `row`, in the float operations of the formats' definitions.
inline Weight dequantise(WeightFormat format, const std::byte* row, int32_t k) {
  switch (format) {
    case WeightFormat::F32: return plain(read_block<float>(row, k));
    case WeightFormat::F16: return plain(octavo::f16_to_f32(read_block<uint16_t>(row, k)));
    case WeightFormat::BF16: return plain(octavo::bf16_to_f32(read_block<octavo::Bf16>(row, k)));
    case WeightFormat::Q2_K: return dequantise_in_row<octavo::BlockQ2_K>(row, 256, k);
    case WeightFormat::Q3_K: return dequantise_in_row<octavo::BlockQ3_K>(row, 256, k);
    case WeightFormat::Q4_0: return dequantise_in_row<octavo::BlockQ4_0>(row, 32, k);
    case WeightFormat::Q4_1: return dequantise_in_row<octavo::BlockQ4_1>(row, 32, k);
    case WeightFormat::Q4_K: return dequantise_in_row<octavo::BlockQ4_K>(row, 256, k);
    case WeightFormat::Q5_0: return dequantise_in_row<octavo::BlockQ5_0>(row, 32, k);
    case WeightFormat::Q5_1: return dequantise_in_row<octavo::BlockQ5_1>(row, 32, k);
    case WeightFormat::Q5_K: return dequantise_in_row<octavo::BlockQ5_K>(row, 256, k);
    case WeightFormat::Q6_K: return dequantise_in_row<octavo::BlockQ6_K>(row, 256, k);
    case WeightFormat::Q8_0: return dequantise_in_row<octavo::BlockQ8_0>(row, 32, k);
    case WeightFormat::IQ4_NL: return dequantise_in_row<octavo::BlockIQ4_NL>(row, 32, k);
    case WeightFormat::IQ4_XS: return dequantise_in_row<octavo::BlockIQ4_XS>(row, 256, k);
  }
  return {0.0f, 0.0f};
}

}  // namespace octavo_test
