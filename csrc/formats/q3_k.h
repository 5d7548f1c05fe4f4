// Q3_K: w = d * (scale - 32) * (code - 4), 256 weights a block, one scale per 16 weights.
#pragma once

#include <cstdint>

namespace octavo {

//   0             32               96        108   110
//   | 32 B third   | 64 B low bits  | 12 B    | d f16 |
// 32-block i (0..7), code k: low byte 32 * (i / 4) + k, bits 2 * (i % 4) and the next; third byte k, bit i.
// scales, 6 bits each: the low 4 bits of scale j are in byte j % 8, low nibble for j < 8, high otherwise; the top
// 2 bits are bits 2 * (j / 4) and the next of byte 8 + j % 4.
struct BlockQ3_K {
  uint8_t third[32];
  uint8_t low[64];
  uint8_t scales[12];
  uint16_t d;
};
static_assert(sizeof(BlockQ3_K) == 110);

//   0                  64           128           256
//   | d: 2 halves x 16 | third x 64 | low: 2 x 64 |   and the same of block 1
// Bits 2i and 2i + 1 of byte 4 * row + b of low plane p belong to code 4 * (4p + i) + b of the row, bit g of third byte
// 4 * row + b to code 4g + b. d[half] is d * (scale - 32) rounded to f16; half 0 covers codes 0..15.
struct RecordQ3_K {
  struct Lines {
    uint16_t d[2][16];
    uint8_t third[64];
    uint8_t low[2][64];
  } block[2];
};
static_assert(sizeof(RecordQ3_K) == 512);

}  // namespace octavo
