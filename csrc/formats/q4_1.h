// Q4_1: w = d * code + m, 32 weights a block.
#pragma once

#include <cstdint>

namespace octavo {

//   0      2      4                20
//   | d f16 | m f16 | 16 B of codes  |   nibbles as in Q4_0
struct BlockQ4_1 {
  uint16_t d;
  uint16_t m;
  uint8_t codes[16];
};
static_assert(sizeof(BlockQ4_1) == 20);

//   0         32        64        96        128               384               640
//   | d0 x 16 | d1 x 16 | m0 x 16 | m1 x 16 | block 0: 4 x 64 | block 1: 4 x 64 |   nibbles as in RecordQ4_0
struct RecordQ4_1 {
  uint16_t d[2][16];
  uint16_t m[2][16];
  uint8_t codes[2][4][64];
};
static_assert(sizeof(RecordQ4_1) == 640);

}  // namespace octavo
