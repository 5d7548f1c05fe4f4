// Q4_K: w = d * scale * code - dmin * min, 256 weights a block of eight 32-blocks. Packed as RecordQ4_1.
#pragma once

#include <cstdint>

namespace octavo {

//   0      2         4          16                        144
//   | d f16 | dmin f16 | 12 B     | 4 x 32 B of nibbles     |
// Chunk c of 32 nibble bytes: 32-block 2c in the low, 32-block 2c + 1 in the high nibbles, byte k for code k.
// scales, 6 bits each: for i < 4, scale i and min i are the low 6 bits of bytes i and 4 + i; for i >= 4, byte 4 + i
// holds their low 4 bits (scale in the low nibble) and the top 2 bits of bytes i - 4 and i hold the rest.
struct BlockQ4_K {
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];
  uint8_t nibbles[128];
};
static_assert(sizeof(BlockQ4_K) == 144);

}  // namespace octavo
