// IQ4_XS: w = d * (scale - 32) * level[code], 256 weights a block of eight 32-blocks. Packed as RecordQ4_0.
#pragma once

#include <cstdint>

namespace octavo {

//   0      2               4             8                          136
//   | d f16 | 2 B high bits | 4 B low bits | 8 x 16 B of codes         |
// Codes of a 32-block as in IQ4_NL. scales, 6 bits each: the low 4 bits of scale i are a nibble of low byte i / 2, the
// low one for even i; the top 2 bits are bits 2i and 2i + 1 of the high bits.
struct BlockIQ4_XS {
  uint16_t d;
  uint16_t scales_high;
  uint8_t scales_low[4];
  uint8_t codes[8][16];
};
static_assert(sizeof(BlockIQ4_XS) == 136);

}  // namespace octavo
