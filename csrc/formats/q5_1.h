// Q5_1: w = d * code + m, 32 weights a block.
#pragma once

#include <cstdint>

namespace octavo {

//   0      2      4         8                24
//   | d f16 | m f16 | fifth   | 16 B of nibbles |   nibbles and fifth bits as in Q5_0
struct BlockQ5_1 {
  uint16_t d;
  uint16_t m;
  uint8_t fifth[4];
  uint8_t nibbles[16];
};
static_assert(sizeof(BlockQ5_1) == 24);

//   0         32        64        96        128           192               448           512               768
//   | d0 x 16 | d1 x 16 | m0 x 16 | m1 x 16 | fifth0 x 64 | block 0: 4 x 64 | fifth1 x 64 | block 1: 4 x 64 |
// Nibbles and fifth bits as in RecordQ5_0.
struct RecordQ5_1 {
  uint16_t d[2][16];
  uint16_t m[2][16];
  struct Lines {
    uint8_t fifth[64];
    uint8_t nibbles[4][64];
  } block[2];
};
static_assert(sizeof(RecordQ5_1) == 768);

}  // namespace octavo
