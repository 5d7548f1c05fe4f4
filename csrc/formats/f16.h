// IEEE half precision in plain C++, for builds without F16C. Equal to vcvtph2ps and vcvtps2ph (nearest even) in every
// bit, whatever the flush-to-zero state of the thread: no intermediate value is a float subnormal.
#pragma once

#include <cstdint>

namespace octavo {

// Internal linkage: ISA translation units include this too, and must not export code other units could pick up.
static inline float f16_to_f32(uint16_t half) {
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fff) << 13;
  const uint32_t exponent = magnitude & 0x0f800000;
  // The exponent's bias goes from 15 to 127; infinities and NaNs get all ones. A subnormal m * 2^-24 becomes
  // 2^-14 + m * 2^-24 and loses the 2^-14 again, exactly. Subtracting 0 makes NaNs quiet. No branch: this vectorises.
  const uint32_t extra = exponent == 0 ? 1u << 23 : 0;
  const uint32_t special = exponent == 0x0f800000 ? 112u << 23 : 0;
  const uint32_t excess = exponent == 0 ? 0x38800000 : 0;
  const float value = __builtin_bit_cast(float, magnitude + (112u << 23) + extra + special) -
                      __builtin_bit_cast(float, excess);
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, value) | (static_cast<uint32_t>(half & 0x8000) << 16));
}

static inline uint16_t f32_to_f16(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t magnitude = bits & 0x7fffffff;
  const uint32_t sign = (bits >> 16) & 0x8000;
  uint32_t half;
  if (magnitude > 0x7f800000) {
    half = 0x7e00 | ((magnitude >> 13) & 0x03ff);
  } else if (magnitude >= 0x477ff000) {  // 65520 and above round to infinity
    half = 0x7c00;
  } else if (magnitude < 0x38800000) {  // below 2^-14: adding 0.5 leaves multiples of 2^-24, rounded to nearest even
    half = __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, magnitude) + 0.5f) - 0x3f000000;
  } else {
    half = (magnitude - ((127 - 15) << 23) + 0x0fff + ((magnitude >> 13) & 1)) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

}  // namespace octavo
