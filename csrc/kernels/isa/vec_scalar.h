// The SIMD vocabulary of the step kernels in plain C++: 16 float lanes. Same names as vec_avx512.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/bf16.h"
#include "formats/f16.h"

namespace octavo::scalar {
namespace {

struct Vec {
  float lane[16];
};
using Mask = uint32_t;  // bit i = lane i
constexpr int kVecRegisters = 4;  // any number, as no Vec is in one; a small one keeps the code small

inline uint32_t float_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
inline float bits_float(uint32_t x) { return __builtin_bit_cast(float, x); }

template <typename Function>
inline Vec each(Function f) {
  Vec out;
  for (int i = 0; i < 16; ++i) out.lane[i] = f(i);
  return out;
}

inline Vec splat(float x) {
  return each([&](int) { return x; });
}
inline Vec zero() { return splat(0.0f); }
inline Vec load(const float* p) {
  return each([&](int i) { return p[i]; });
}
inline void store(float* p, Vec v) {
  for (int i = 0; i < 16; ++i) p[i] = v.lane[i];
}
// The first n lanes, 0 <= n <= 16; lanes past them read as 0 and are not touched in memory.
inline Vec load_part(const float* p, int32_t n) {
  return each([&](int i) { return i < n ? p[i] : 0.0f; });
}
inline void store_part(float* p, Vec v, int32_t n) {
  for (int i = 0; i < n; ++i) p[i] = v.lane[i];
}

inline Vec load_kv(const float* p) { return load(p); }
inline Vec load_kv_part(const float* p, int32_t n) { return load_part(p, n); }
inline Vec load_kv(const uint16_t* p) {
  return each([&](int i) { return f16_to_f32(p[i]); });
}
inline Vec load_kv_part(const uint16_t* p, int32_t n) {
  return each([&](int i) { return i < n ? f16_to_f32(p[i]) : 0.0f; });
}
inline void store_kv_part(float* p, Vec v, int32_t n) { store_part(p, v, n); }
inline void store_kv_part(uint16_t* p, Vec v, int32_t n) {
  for (int i = 0; i < n; ++i) p[i] = f32_to_f16(v.lane[i]);
}

// Codes of 16 channels or tokens; what a code stands for is in step_kv.h.
inline Vec load_bf16(const Bf16* p) {
  return each([&](int i) { return bf16_to_f32(p[i]); });
}
inline Vec load_int8(const uint8_t* p) {
  return each([&](int i) { return static_cast<float>(static_cast<int8_t>(p[i])); });
}
// The half precision numbers whose sign is a code's first bit and whose other bits begin with the code's rest, after
// kSkip zeros.
template <int kSkip>
inline Vec load_float8(const uint8_t* p) {
  return each([&](int i) {
    const uint32_t sign = (p[i] & 0x80u) << 8, rest = (p[i] & 0x7fu) << (8 - kSkip);
    return f16_to_f32(static_cast<uint16_t>(sign | rest));
  });
}
// The lower (shift 0) or upper (shift 4) four bits of 16 bytes.
template <int kShift>
inline Vec load_nibbles(const uint8_t* p) {
  return each([&](int i) { return static_cast<float>((p[i] >> kShift) & 15); });
}
// The lower four bits of 8 bytes, then the upper.
inline Vec load_packed_nibbles(const uint8_t* p) {
  return each([&](int i) { return static_cast<float>(i < 8 ? p[i] & 15 : p[i - 8] >> 4); });
}

inline Vec add(Vec a, Vec b) {
  return each([&](int i) { return a.lane[i] + b.lane[i]; });
}
inline Vec sub(Vec a, Vec b) {
  return each([&](int i) { return a.lane[i] - b.lane[i]; });
}
inline Vec mul(Vec a, Vec b) {
  return each([&](int i) { return a.lane[i] * b.lane[i]; });
}
inline Vec div(Vec a, Vec b) {
  return each([&](int i) { return a.lane[i] / b.lane[i]; });
}
// Rounded twice: the baseline has no fused multiply-add.
inline Vec fma(Vec a, Vec b, Vec c) {
  return each([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
}
inline Vec square_root(Vec a) {
  return each([&](int i) { return __builtin_sqrtf(a.lane[i]); });
}
// b where either is NaN.
inline Vec max(Vec a, Vec b) {
  return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline Vec min(Vec a, Vec b) {
  return each([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
}
// To nearest even, for |a| < 2^22.
inline Vec round(Vec a) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: its neighbours are 1 apart
  return each([&](int i) { return (a.lane[i] + kMagic) - kMagic; });
}
// a * 2^n for integral n in [-126, 128]; in two factors because 2^128 is no float.
inline Vec scale_by_power(Vec a, Vec n) {
  constexpr float kMagic = 12582912.0f;
  return each([&](int i) {
    // NaN gives some exponent; the product stays NaN through `a`.
    const uint32_t power = (float_bits(n.lane[i] + kMagic) - float_bits(kMagic)) & 0x1ffu;
    const uint32_t half = ((power + 256) & 0x1ffu) / 2, rest = ((power + 256) & 0x1ffu) - half;
    return a.lane[i] * bits_float(((half - 1) & 0xffu) << 23) * bits_float(((rest - 1) & 0xffu) << 23);
  });
}
inline Vec swap_pairs(Vec a) {
  return each([&](int i) { return a.lane[i ^ 1]; });
}

inline Mask greater(Vec a, Vec b) {
  Mask mask = 0;
  for (int i = 0; i < 16; ++i) mask |= static_cast<Mask>(a.lane[i] > b.lane[i]) << i;
  return mask;
}
inline Mask equal(Vec a, Vec b) {
  Mask mask = 0;
  for (int i = 0; i < 16; ++i) mask |= static_cast<Mask>(a.lane[i] == b.lane[i]) << i;
  return mask;
}
inline Mask less(Vec a, Vec b) { return greater(b, a); }
// Lane i from `a` where mask has bit i, else from `b`.
inline Vec select(Mask mask, Vec a, Vec b) {
  return each([&](int i) { return (mask >> i) & 1 ? a.lane[i] : b.lane[i]; });
}

inline float reduce_add(Vec a) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) a.lane[i] += a.lane[i + width];
  }
  return a.lane[0];
}
inline float reduce_max(Vec a) {
  float best = a.lane[0];
  for (int i = 1; i < 16; ++i) best = a.lane[i] > best ? a.lane[i] : best;
  return best;
}

inline int32_t write_indices(Mask mask, int32_t base, int32_t* out) {
  int32_t count = 0;
  for (; mask != 0; mask &= mask - 1) out[count++] = base + __builtin_ctz(mask);
  return count;
}

inline void prefetch_far(const void*) {}

}  // namespace
}  // namespace octavo::scalar
