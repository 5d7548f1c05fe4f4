// Q4_0: w = d * (code - 8), 32 weights a block.
#pragma once

#include <cstdint>

namespace octavo {

//   0      2                18
//   | d f16 | 16 B of codes  |   byte i: code i in the low nibble, code 16 + i in the high nibble
struct BlockQ4_0 {
  uint16_t d;
  uint8_t codes[16];
};
static_assert(sizeof(BlockQ4_0) == 18);

//   0         32        64                320               576
//   | d0 x 16 | d1 x 16 | block 0: 4 x 64 | block 1: 4 x 64 |
// Nibble group j, byte 4 * row + b: code 4j + b of the row in the low, code 16 + 4j + b in the high nibble.
struct RecordQ4_0 {
  uint16_t d[2][16];
  uint8_t codes[2][4][64];
};
static_assert(sizeof(RecordQ4_0) == 576);

}  // namespace octavo
