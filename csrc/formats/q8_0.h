// Q8_0: w = d * code, 32 weights a block.
#pragma once

#include <cstdint>

namespace octavo {

//   0      2                34
//   | d f16 | 32 B of int8   |
struct BlockQ8_0 {
  uint16_t d;
  int8_t codes[32];
};
static_assert(sizeof(BlockQ8_0) == 34);

//   0         32        64                576               1088
//   | d0 x 16 | d1 x 16 | block 0: 8 x 64 | block 1: 8 x 64 |
// Group g, byte 4 * row + b: code 4g + b of the row, plus 128.
struct RecordQ8_0 {
  uint16_t d[2][16];
  uint8_t codes[2][8][64];
};
static_assert(sizeof(RecordQ8_0) == 1088);

}  // namespace octavo
