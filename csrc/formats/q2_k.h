// Q2_K: w = d * scale * code - dmin * min, 256 weights a block, one scale and one minimum per 16 weights.
#pragma once

#include <cstdint>

namespace octavo {

//   0                16              80      82         84
//   | 16 B of scales  | 64 B of codes | d f16 | dmin f16 |
// 32-block i (0..7), code k: code byte 32 * (i / 4) + k, bits 2 * (i % 4) and the next.
// Scale byte j: scale j in the low, min j in the high nibble.
struct BlockQ2_K {
  uint8_t scales[16];
  uint8_t codes[64];
  uint16_t d;
  uint16_t dmin;
};
static_assert(sizeof(BlockQ2_K) == 84);

//   0                  64                 128             256
//   | d: 2 halves x 16 | m: 2 halves x 16 | codes: 2 x 64 |   and the same of block 1
// Bits 2i and 2i + 1 of byte 4 * row + b of plane p belong to code 4 * (4p + i) + b of the row. d[half] is d * scale
// and m[half] -dmin * min, rounded to f16; half 0 covers codes 0..15.
struct RecordQ2_K {
  struct Lines {
    uint16_t d[2][16];
    uint16_t m[2][16];
    uint8_t codes[2][64];
  } block[2];
};
static_assert(sizeof(RecordQ2_K) == 512);

}  // namespace octavo
