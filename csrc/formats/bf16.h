// BF16: the upper half of a float.
#pragma once

#include <cstdint>

namespace octavo {

struct Bf16 {
  uint16_t bits;
};

// Internal linkage, see f16.h.
static inline float bf16_to_f32(Bf16 half) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(half.bits) << 16);
}

}  // namespace octavo
