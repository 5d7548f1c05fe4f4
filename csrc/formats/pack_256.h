// Packers of the formats with blocks of 256 and small integer scales. Included by packed.cpp only; see pack_32.h.
//
// A small scale times its block's d, and a small minimum times -dmin, are rounded once to f16.
#pragma once

#include <algorithm>

#include "formats/f16.h"
#include "formats/iq4_xs.h"
#include "formats/pack_32.h"
#include "formats/q2_k.h"
#include "formats/q3_k.h"
#include "formats/q4_k.h"
#include "formats/q5_k.h"
#include "formats/q6_k.h"

namespace octavo {
namespace {

constexpr float kMaxF16 = 65504.0f;

// In this argument order min and max keep a NaN from the file a NaN.
uint16_t round_scale(float d, int32_t small) {
  return f32_to_f16(std::min(std::max(d * static_cast<float>(small), -kMaxF16), kMaxF16));
}

// 32 codes, nibbles at `shift` of 32 bytes.
void put_shifted_nibbles(uint8_t (&groups)[4][64], int32_t row, const uint8_t* source, int32_t shift) {
  uint8_t nibbles[16];
  for (int32_t k = 0; k < 16; ++k) {
    const int32_t low = (source[k] >> shift) & 0x0f;
    const int32_t high = (source[16 + k] >> shift) & 0x0f;
    nibbles[k] = static_cast<uint8_t>(low | high << 4);
  }
  put_nibbles(groups, row, nibbles);
}

// Two bits at `shift` of 32 bytes into the row's lane of both planes, four bytes at a time.
void put_two_bit_planes(uint8_t (&planes)[2][64], int32_t row, const uint8_t* source, int32_t shift) {
  for (int32_t plane = 0; plane < 2; ++plane) {
    uint32_t fields = 0;
    for (int32_t i = 0; i < 4; ++i) {
      uint32_t four;
      std::memcpy(&four, &source[16 * plane + 4 * i], 4);
      fields |= ((four >> shift) & 0x03030303) << 2 * i;
    }
    std::memcpy(&planes[plane][4 * row], &fields, 4);
  }
}

// Bit `bit` of 32 bytes; bit k of the result is byte k's. The multiplication gathers the lowest bits of 8 bytes, no two
// of them added at the same place.
uint32_t gather_bit(const uint8_t (&bytes)[32], int32_t bit) {
  uint32_t bits = 0;
  for (int32_t i = 0; i < 4; ++i) {
    uint64_t eight;
    std::memcpy(&eight, &bytes[8 * i], 8);
    eight = (eight >> bit) & 0x0101010101010101;
    bits |= static_cast<uint32_t>((eight * 0x0102040810204080) >> 56) << 8 * i;
  }
  return bits;
}

// The 6-bit scales and minima of Q4_K and Q5_K.
int32_t six_bit_scale(const uint8_t (&s)[12], int32_t i) {
  return i < 4 ? s[i] & 0x3f : (s[4 + i] & 0x0f) | (s[i - 4] >> 6 << 4);
}
int32_t six_bit_min(const uint8_t (&s)[12], int32_t i) {
  return i < 4 ? s[4 + i] & 0x3f : s[4 + i] >> 4 | (s[i] >> 6 << 4);
}

struct PackQ2_K {
  using Record = RecordQ2_K;
  using Block = BlockQ2_K;
  static constexpr int32_t kBlockCols = 256;

  static void put(const Block& block, int32_t row, int32_t column, Record* records) {
    const float d = f16_to_f32(block.d);
    const float dmin = f16_to_f32(block.dmin);
    for (int32_t i = 0; i < 8; ++i) {
      Record& record = records[column / kRecordCols + i / 2];
      put_two_bit_planes(record.block[i % 2].codes, row, block.codes + 32 * (i / 4), 2 * (i % 4));
      for (int32_t half = 0; half < 2; ++half) {
        const int32_t pair = block.scales[2 * i + half];
        record.block[i % 2].d[half][row] = round_scale(d, pair & 0x0f);
        record.block[i % 2].m[half][row] = round_scale(-dmin, pair >> 4);
      }
    }
  }
};

struct PackQ3_K {
  using Record = RecordQ3_K;
  using Block = BlockQ3_K;
  static constexpr int32_t kBlockCols = 256;

  static void put(const Block& block, int32_t row, int32_t column, Record* records) {
    const float d = f16_to_f32(block.d);
    for (int32_t i = 0; i < 8; ++i) {
      Record& record = records[column / kRecordCols + i / 2];
      put_two_bit_planes(record.block[i % 2].low, row, block.low + 32 * (i / 4), 2 * (i % 4));
      put_bit_plane(record.block[i % 2].third, row, gather_bit(block.third, i));
      for (int32_t half = 0; half < 2; ++half) {
        record.block[i % 2].d[half][row] = round_scale(d, scale(block, 2 * i + half));
      }
    }
  }

  static int32_t scale(const Block& block, int32_t j) {
    const int32_t low = (block.scales[j % 8] >> (j < 8 ? 0 : 4)) & 0x0f;
    const int32_t high = (block.scales[8 + j % 4] >> 2 * (j / 4)) & 3;
    return (low | high << 4) - 32;
  }
};

struct PackQ4_K {
  using Record = RecordQ4_1;
  using Block = BlockQ4_K;
  static constexpr int32_t kBlockCols = 256;

  static void put(const Block& block, int32_t row, int32_t column, Record* records) {
    const float d = f16_to_f32(block.d);
    const float dmin = f16_to_f32(block.dmin);
    for (int32_t i = 0; i < 8; ++i) {
      Record& record = records[column / kRecordCols + i / 2];
      put_shifted_nibbles(record.codes[i % 2], row, block.nibbles + 32 * (i / 2), 4 * (i % 2));
      record.d[i % 2][row] = round_scale(d, six_bit_scale(block.scales, i));
      record.m[i % 2][row] = round_scale(-dmin, six_bit_min(block.scales, i));
    }
  }
};

struct PackQ5_K {
  using Record = RecordQ5_1;
  using Block = BlockQ5_K;
  static constexpr int32_t kBlockCols = 256;

  static void put(const Block& block, int32_t row, int32_t column, Record* records) {
    const float d = f16_to_f32(block.d);
    const float dmin = f16_to_f32(block.dmin);
    for (int32_t i = 0; i < 8; ++i) {
      Record& record = records[column / kRecordCols + i / 2];
      put_shifted_nibbles(record.block[i % 2].nibbles, row, block.nibbles + 32 * (i / 2), 4 * (i % 2));
      put_bit_plane(record.block[i % 2].fifth, row, gather_bit(block.fifth, i));
      record.d[i % 2][row] = round_scale(d, six_bit_scale(block.scales, i));
      record.m[i % 2][row] = round_scale(-dmin, six_bit_min(block.scales, i));
    }
  }
};

struct PackQ6_K {
  using Record = RecordQ6_K;
  using Block = BlockQ6_K;
  static constexpr int32_t kBlockCols = 256;

  static void put(const Block& block, int32_t row, int32_t column, Record* records) {
    const float d = f16_to_f32(block.d);
    for (int32_t i = 0; i < 8; ++i) {
      Record& record = records[column / kRecordCols + i / 2];
      const uint8_t* nibbles = block.nibbles + 64 * (i / 4) + 32 * (i % 2);
      put_shifted_nibbles(record.block[i % 2].nibbles, row, nibbles, i % 4 < 2 ? 0 : 4);
      put_two_bit_planes(record.block[i % 2].upper, row, block.upper + 32 * (i / 4), 2 * (i % 4));
      for (int32_t half = 0; half < 2; ++half) {
        record.block[i % 2].d[half][row] = round_scale(d, block.scales[2 * i + half]);
      }
    }
  }
};

struct PackIQ4_XS {
  using Record = RecordQ4_0;
  using Block = BlockIQ4_XS;
  static constexpr int32_t kBlockCols = 256;

  static void put(const Block& block, int32_t row, int32_t column, Record* records) {
    const float d = f16_to_f32(block.d);
    for (int32_t i = 0; i < 8; ++i) {
      Record& record = records[column / kRecordCols + i / 2];
      put_nibbles(record.codes[i % 2], row, block.codes[i]);
      const int32_t low = (block.scales_low[i / 2] >> 4 * (i % 2)) & 0x0f;
      const int32_t high = (block.scales_high >> 2 * i) & 3;
      record.d[i % 2][row] = round_scale(d, (low | high << 4) - 32);
    }
  }
};

}  // namespace
}  // namespace octavo
