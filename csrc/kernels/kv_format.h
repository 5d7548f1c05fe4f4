// How keys and values are stored: the types of a KV cache and the bytes they take. Included by ISA translation units:
// <cstddef>, <cstdint> and our own headers only. The same arithmetic as octavo.kv_layout.
//
// Functions have internal linkage: ISA translation units must not export code other units could pick up.
//
// Keys of a head in a block are channel codes, token innermost; values the other way round. A quantised side has its
// factors behind its codes: f16 numbers, [groups][16 tokens] scales, then as many minima if it has them. A group is
// kKVGroup channels of a head (the last one what is left). What is stored of a channel is
//
//   code * (scale * unit) + minimum        unit: a power of two, so that scales are of the size of the numbers
//
// and every token's codes and factors come from its own numbers alone, in bytes of its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

inline constexpr int32_t kBlockSize = 16;  // tokens per KV block
inline constexpr int32_t kKVGroup = 64;    // channels that share a scale
inline constexpr size_t kKVLine = 64;      // layers begin at multiples of it

// The numbers are part of the binding to Python: octavo.dtypes.KVDType in its order.
enum class KVType : int32_t { F16, BF16, F32, kInt8, kE4m3, kE5m2, kInt8Int4, kInt4 };
inline constexpr int32_t kNumKVTypes = 8;

// What is stored of a channel.
enum class KVCode : int32_t { F16, BF16, F32, kInt8, kE4m3, kE5m2, kUint4 };

static constexpr KVCode key_code(KVType type) {
  switch (type) {
    case KVType::F16: return KVCode::F16;
    case KVType::BF16: return KVCode::BF16;
    case KVType::F32: return KVCode::F32;
    case KVType::kE4m3: return KVCode::kE4m3;
    case KVType::kE5m2: return KVCode::kE5m2;
    case KVType::kInt4: return KVCode::kUint4;
    case KVType::kInt8:
    case KVType::kInt8Int4: break;
  }
  return KVCode::kInt8;
}
static constexpr KVCode value_code(KVType type) { return type == KVType::kInt8Int4 ? KVCode::kUint4 : key_code(type); }

static constexpr bool has_scale(KVCode code) { return code >= KVCode::kInt8; }
static constexpr bool has_minimum(KVCode code) { return code == KVCode::kUint4; }

// Bytes of a token's channels, codes only: 4-bit codes fill whole vectors of 16 channels.
static constexpr size_t row_bytes(KVCode code, int32_t head_dim) {
  const size_t channels = static_cast<size_t>(head_dim);
  switch (code) {
    case KVCode::F32: return channels * 4;
    case KVCode::F16:
    case KVCode::BF16: return channels * 2;
    case KVCode::kUint4: return (channels + 15) / 16 * 8;
    case KVCode::kInt8:
    case KVCode::kE4m3:
    case KVCode::kE5m2: break;
  }
  return channels;
}
static constexpr size_t num_groups(int32_t head_dim) {
  return (static_cast<size_t>(head_dim) + kKVGroup - 1) / kKVGroup;
}

// Bytes of one side of a head in a block: codes, then factors.
static constexpr size_t codes_bytes(KVCode code, int32_t head_dim) { return row_bytes(code, head_dim) * kBlockSize; }
static constexpr size_t factors_bytes(KVCode code, int32_t head_dim) {
  const size_t factors = (has_scale(code) ? 1 : 0) + (has_minimum(code) ? 1 : 0);
  return num_groups(head_dim) * kBlockSize * sizeof(uint16_t) * factors;
}
static constexpr size_t side_bytes(KVCode code, int32_t head_dim) {
  return codes_bytes(code, head_dim) + factors_bytes(code, head_dim);
}

// One layer of a block: { keys | values } of each head, up to a whole cache line.
static constexpr size_t kv_layer_bytes(KVType type, int32_t num_kv_heads, int32_t head_dim) {
  const size_t head = side_bytes(key_code(type), head_dim) + side_bytes(value_code(type), head_dim);
  return (num_kv_heads * head + kKVLine - 1) / kKVLine * kKVLine;
}

}  // namespace octavo
