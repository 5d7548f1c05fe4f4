// Q5_K: w = d * scale * code - dmin * min, 256 weights a block of eight 32-blocks. Packed as RecordQ5_1.
#pragma once

#include <cstdint>

namespace octavo {

//   0      2         4          16             48                        176
//   | d f16 | dmin f16 | 12 B     | 32 B fifth    | 4 x 32 B of nibbles     |   scales and nibbles as in Q4_K
// Bit i of fifth byte k belongs to code k of 32-block i.
struct BlockQ5_K {
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];
  uint8_t fifth[32];
  uint8_t nibbles[128];
};
static_assert(sizeof(BlockQ5_K) == 176);

}  // namespace octavo
