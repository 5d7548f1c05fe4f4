// How to read one code and one scale out of a packed record, a struct per quantised format. Plain C++ that vectorises
// over the lanes of a group. Everything has internal linkage: each ISA's translation units compile their own copy.
//
//   Record     the format's packed record
//   kMaxCode   codes are 0 to this
//   kOffset    w = d * (code - kOffset), or d * code + m where kHasMin
//   kHalves    scales, and minima, per 32-block
//   code(record, block, g, lane)   code of byte `lane` (4 * row + b) in k-group g of 32-block `block` (0 or 1)
//   d(record, block, half), m(record, block, half)   the f16 scales and minima of the 16 rows
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/iq4_nl.h"
#include "formats/packed.h"
#include "formats/q2_k.h"
#include "formats/q3_k.h"
#include "formats/q4_0.h"
#include "formats/q4_1.h"
#include "formats/q5_0.h"
#include "formats/q5_1.h"
#include "formats/q6_k.h"
#include "formats/q8_0.h"

namespace octavo {
namespace {

inline int32_t nibble(const uint8_t (&groups)[4][64], int32_t g, int32_t lane) {
  return (groups[g % 4][lane] >> (g / 4 * 4)) & 0x0f;
}

inline int32_t two_bits(const uint8_t (&planes)[2][64], int32_t g, int32_t lane) {
  return (planes[g / 4][lane] >> (g % 4 * 2)) & 3;
}

inline int32_t bit(const uint8_t (&plane)[64], int32_t g, int32_t lane) { return (plane[lane] >> g) & 1; }

struct CodesQ2_K {
  using Record = RecordQ2_K;
  static constexpr int32_t kMaxCode = 3;
  static constexpr int32_t kOffset = 0;
  static constexpr int32_t kHalves = 2;
  static constexpr bool kHasMin = true;

  static int32_t code(const Record& record, int32_t block, int32_t g, int32_t lane) {
    return two_bits(record.block[block].codes, g, lane);
  }
  static const uint16_t* d(const Record& record, int32_t block, int32_t half) { return record.block[block].d[half]; }
  static const uint16_t* m(const Record& record, int32_t block, int32_t half) { return record.block[block].m[half]; }
};

struct CodesQ3_K {
  using Record = RecordQ3_K;
  static constexpr int32_t kMaxCode = 7;
  static constexpr int32_t kOffset = 4;
  static constexpr int32_t kHalves = 2;
  static constexpr bool kHasMin = false;

  static int32_t code(const Record& record, int32_t block, int32_t g, int32_t lane) {
    return two_bits(record.block[block].low, g, lane) | bit(record.block[block].third, g, lane) << 2;
  }
  static const uint16_t* d(const Record& record, int32_t block, int32_t half) { return record.block[block].d[half]; }
  static const uint16_t* m(const Record& record, int32_t block, int32_t half) { return nullptr; }
};

struct CodesQ4_0 {
  using Record = RecordQ4_0;
  static constexpr int32_t kMaxCode = 15;
  static constexpr int32_t kOffset = 8;
  static constexpr int32_t kHalves = 1;
  static constexpr bool kHasMin = false;

  static int32_t code(const Record& record, int32_t block, int32_t g, int32_t lane) {
    return nibble(record.codes[block], g, lane);
  }
  static const uint16_t* d(const Record& record, int32_t block, int32_t half) { return record.d[block]; }
  static const uint16_t* m(const Record& record, int32_t block, int32_t half) { return nullptr; }
};

struct CodesQ4_1 {
  using Record = RecordQ4_1;
  static constexpr int32_t kMaxCode = 15;
  static constexpr int32_t kOffset = 0;
  static constexpr int32_t kHalves = 1;
  static constexpr bool kHasMin = true;

  static int32_t code(const Record& record, int32_t block, int32_t g, int32_t lane) {
    return nibble(record.codes[block], g, lane);
  }
  static const uint16_t* d(const Record& record, int32_t block, int32_t half) { return record.d[block]; }
  static const uint16_t* m(const Record& record, int32_t block, int32_t half) { return record.m[block]; }
};

// The level of a code, plus 128.
struct CodesIQ4 {
  using Record = RecordQ4_0;
  static constexpr int32_t kMaxCode = 241;
  static constexpr int32_t kOffset = 128;
  static constexpr int32_t kHalves = 1;
  static constexpr bool kHasMin = false;

  static int32_t code(const Record& record, int32_t block, int32_t g, int32_t lane) {
    return kIQ4Levels[nibble(record.codes[block], g, lane)] + kOffset;
  }
  static const uint16_t* d(const Record& record, int32_t block, int32_t half) { return record.d[block]; }
  static const uint16_t* m(const Record& record, int32_t block, int32_t half) { return nullptr; }
};

struct CodesQ5_0 {
  using Record = RecordQ5_0;
  static constexpr int32_t kMaxCode = 31;
  static constexpr int32_t kOffset = 16;
  static constexpr int32_t kHalves = 1;
  static constexpr bool kHasMin = false;

  static int32_t code(const Record& record, int32_t block, int32_t g, int32_t lane) {
    return nibble(record.block[block].nibbles, g, lane) | bit(record.block[block].fifth, g, lane) << 4;
  }
  static const uint16_t* d(const Record& record, int32_t block, int32_t half) { return record.d[block]; }
  static const uint16_t* m(const Record& record, int32_t block, int32_t half) { return nullptr; }
};

struct CodesQ5_1 {
  using Record = RecordQ5_1;
  static constexpr int32_t kMaxCode = 31;
  static constexpr int32_t kOffset = 0;
  static constexpr int32_t kHalves = 1;
  static constexpr bool kHasMin = true;

  static int32_t code(const Record& record, int32_t block, int32_t g, int32_t lane) {
    return nibble(record.block[block].nibbles, g, lane) | bit(record.block[block].fifth, g, lane) << 4;
  }
  static const uint16_t* d(const Record& record, int32_t block, int32_t half) { return record.d[block]; }
  static const uint16_t* m(const Record& record, int32_t block, int32_t half) { return record.m[block]; }
};

struct CodesQ6_K {
  using Record = RecordQ6_K;
  static constexpr int32_t kMaxCode = 63;
  static constexpr int32_t kOffset = 32;
  static constexpr int32_t kHalves = 2;
  static constexpr bool kHasMin = false;

  static int32_t code(const Record& record, int32_t block, int32_t g, int32_t lane) {
    return nibble(record.block[block].nibbles, g, lane) | two_bits(record.block[block].upper, g, lane) << 4;
  }
  static const uint16_t* d(const Record& record, int32_t block, int32_t half) { return record.block[block].d[half]; }
  static const uint16_t* m(const Record& record, int32_t block, int32_t half) { return nullptr; }
};

struct CodesQ8_0 {
  using Record = RecordQ8_0;
  static constexpr int32_t kMaxCode = 255;
  static constexpr int32_t kOffset = 128;
  static constexpr int32_t kHalves = 1;
  static constexpr bool kHasMin = false;

  static int32_t code(const Record& record, int32_t block, int32_t g, int32_t lane) {
    return record.codes[block][g][lane];
  }
  static const uint16_t* d(const Record& record, int32_t block, int32_t half) { return record.d[block]; }
  static const uint16_t* m(const Record& record, int32_t block, int32_t half) { return nullptr; }
};

// 32-blocks of a packed row or of the activations, padding included.
inline int32_t num_padded_blocks(int32_t cols) { return (cols + kRecordCols - 1) / kRecordCols * 2; }

}  // namespace
}  // namespace octavo
