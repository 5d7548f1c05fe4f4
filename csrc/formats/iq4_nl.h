// IQ4_NL: w = d * level[code], 32 weights a block. Packed as RecordQ4_0.
#pragma once

#include <cstdint>

namespace octavo {

//   0      2                18
//   | d f16 | 16 B of codes  |   nibbles as in Q4_0
struct BlockIQ4_NL {
  uint16_t d;
  uint8_t codes[16];
};
static_assert(sizeof(BlockIQ4_NL) == 18);

// What the codes of IQ4_NL and IQ4_XS stand for; source: ggml's kvalues_iq4nl. Internal linkage, see f16.h.
static constexpr int8_t kIQ4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

}  // namespace octavo
