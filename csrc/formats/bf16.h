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

// To nearest even; integers only, so that no flush-to-zero state matters. NaNs become quiet.
static inline Bf16 f32_to_bf16(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  return {static_cast<uint16_t>(is_nan ? (bits >> 16) | 0x0040 : rounded)};
}

}  // namespace octavo
