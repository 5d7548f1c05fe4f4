// What a KV pool holds, read byte by byte in double precision: the other account of kernels/kv_format.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "core/kv_pool.h"
#include "formats/bf16.h"
#include "formats/f16.h"

namespace octavo_test {

using namespace octavo;

inline constexpr KVType kKVTypes[] = {KVType::F16,   KVType::BF16,  KVType::F32,       KVType::kInt8,
                                      KVType::kE4m3, KVType::kE5m2, KVType::kInt8Int4, KVType::kInt4};

inline double half_at(const std::byte* p) {
  uint16_t half;
  std::memcpy(&half, p, sizeof(half));
  return f16_to_f32(half);
}

// An 8-bit float with this many mantissa bits, whose exponents begin at `bias`.
inline double float8(uint8_t code, int mantissa_bits, int bias) {
  const int exponent = (code & 0x7f) >> mantissa_bits, mantissa = code & ((1 << mantissa_bits) - 1);
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  const double value = exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1.0 + fraction, exponent - bias);
  return code & 0x80 ? -value : value;
}

// Channel `channel` of the token at `place` of one side of a head.
inline double channel_at(KVCode code, const std::byte* side, int32_t head_dim, int32_t place, int32_t channel,
                         bool is_key) {
  const int64_t index = is_key ? int64_t{channel} * kBlockSize + place : int64_t{place} * head_dim + channel;
  const std::byte* factors = side + codes_bytes(code, head_dim) + (channel / 64 * 16 + place) * 2;
  const auto byte = [&](int64_t at) { return static_cast<uint8_t>(side[at]); };
  switch (code) {
    case KVCode::F16: return half_at(side + index * 2);
    case KVCode::BF16: {
      Bf16 half;
      std::memcpy(&half, side + index * 2, sizeof(half));
      return bf16_to_f32(half);
    }
    case KVCode::F32: {
      float value;
      std::memcpy(&value, side + index * 4, sizeof(value));
      return value;
    }
    case KVCode::kInt8: return static_cast<int8_t>(byte(index)) * half_at(factors) / 128;
    case KVCode::kE4m3: return float8(byte(index), 3, 7) / 256 * half_at(factors);
    case KVCode::kE5m2: return float8(byte(index), 2, 15) / 32768 * half_at(factors);
    case KVCode::kUint4: break;
  }
  const int32_t row = (head_dim + 15) / 16 * 8;
  const int shift = (is_key ? channel % 2 : channel % 16 / 8) * 4;
  const int64_t at = is_key ? channel / 2 * 16 + place : place * row + channel / 16 * 8 + channel % 8;
  return ((byte(at) >> shift) & 15) * (half_at(factors) / 16) + half_at(factors + (head_dim + 63) / 64 * 32);
}

// Keys and values of a token's head as they are stored; keys of 4 bits rotated.
struct StoredHead {
  std::vector<double> key, value;
};
inline StoredHead stored_head(const KVLayer& layer, int32_t slot, int32_t head) {
  const KVCode keys = key_code(layer.type), values = value_code(layer.type);
  const int32_t dim = layer.head_dim, place = slot % kBlockSize;
  const std::byte* side = layer.pool + slot / kBlockSize * layer.block_bytes + layer.layer_offset +
                          head * (side_bytes(keys, dim) + side_bytes(values, dim));
  StoredHead out;
  for (int32_t c = 0; c < dim; ++c) {
    out.key.push_back(channel_at(keys, side, dim, place, c, true));
    out.value.push_back(channel_at(values, side + side_bytes(keys, dim), dim, place, c, false));
  }
  return out;
}

// x times the Hadamard matrix, entry by entry: the sign of (i, j) is the parity of i & j.
inline std::vector<double> rotated(const float* x, int32_t size) {
  std::vector<double> out;
  while (size > 0) {
    int32_t n = 1;
    while (2 * n <= size) n *= 2;
    for (int32_t i = 0; i < n; ++i) {
      double sum = 0.0;
      for (int32_t j = 0; j < n; ++j) sum += __builtin_parity(i & j) ? -x[j] : x[j];
      out.push_back(sum / std::sqrt(n));
    }
    x += n;
    size -= n;
  }
  return out;
}

}  // namespace octavo_test
