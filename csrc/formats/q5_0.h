// Q5_0: w = d * (code - 16), 32 weights a block.
#pragma once

#include <cstdint>

namespace octavo {

//   0      2         6                22
//   | d f16 | fifth   | 16 B of nibbles |   nibbles as in Q4_0; bit k of `fifth` (little endian) belongs to code k
struct BlockQ5_0 {
  uint16_t d;
  uint8_t fifth[4];
  uint8_t nibbles[16];
};
static_assert(sizeof(BlockQ5_0) == 22);

//   0         32        64            128               384           448               704
//   | d0 x 16 | d1 x 16 | fifth0 x 64 | block 0: 4 x 64 | fifth1 x 64 | block 1: 4 x 64 |   nibbles as in RecordQ4_0
// Bit g of fifth byte 4 * row + b belongs to code 4g + b of the row.
struct RecordQ5_0 {
  uint16_t d[2][16];
  struct Lines {
    uint8_t fifth[64];
    uint8_t nibbles[4][64];
  } block[2];
};
static_assert(sizeof(RecordQ5_0) == 704);

}  // namespace octavo
