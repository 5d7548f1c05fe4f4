// Q6_K: w = d * scale * (code - 32), 256 weights a block, one scale per 16 weights.
#pragma once

#include <cstdint>

namespace octavo {

//   0                  128              192          208   210
//   | 128 B of nibbles | 64 B upper bits | 16 x int8  | d f16 |
// Half h (128 weights) uses nibble bytes 64h.. and upper bytes 32h..; its 32-block i (0..3), code k:
//   nibble byte 64h + 32 * (i % 2) + k, low for i < 2, high otherwise; upper byte 32h + k, bits 2i and 2i + 1.
struct BlockQ6_K {
  uint8_t nibbles[128];
  uint8_t upper[64];
  int8_t scales[16];
  uint16_t d;
};
static_assert(sizeof(BlockQ6_K) == 210);

//   0                  64              192               448
//   | d: 2 halves x 16 | upper: 2 x 64 | nibbles: 4 x 64 |   and the same of block 1
// Nibbles as in RecordQ4_0. Bits 2i and 2i + 1 of byte 4 * row + b of upper plane p belong to code 4 * (4p + i) + b.
// d[half] is d * scale rounded to f16; half 0 covers codes 0..15 of the 32-block.
struct RecordQ6_K {
  struct Lines {
    uint16_t d[2][16];
    uint8_t upper[2][64];
    uint8_t nibbles[4][64];
  } block[2];
};
static_assert(sizeof(RecordQ6_K) == 896);

}  // namespace octavo
