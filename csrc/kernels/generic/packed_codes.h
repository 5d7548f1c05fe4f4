// How to read one code and one scale out of a packed record, a struct per quantised format. Plain C++ that vectorises
// over the lanes of a group. Everything has internal linkage: each ISA's translation units compile their own copy.
//
//   Record     the format's packed record
//   kMaxCode   codes are 0 to this
//   kOffset    w = d * (code - kOffset), or d * code + m where kHasMin
//   kHalves    scales per 32-block
//   code(record, block, g, lane)   code of byte `lane` (4 * row + b) in k-group g of 32-block `block` (0 or 1)
//   d(record, block, half), m(record, block)   the f16 scales and minima of the 16 rows
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/packed.h"
#include "formats/q4_0.h"
#include "formats/q4_1.h"
#include "formats/q5_0.h"
#include "formats/q6_k.h"
#include "formats/q8_0.h"

namespace octavo {
namespace {

struct CodesQ4_0 {
  using Record = RecordQ4_0;
  static constexpr int32_t kMaxCode = 15;
  static constexpr int32_t kOffset = 8;
  static constexpr int32_t kHalves = 1;
  static constexpr bool kHasMin = false;

  static int32_t code(const Record& record, int32_t block, int32_t g, int32_t lane) {
    return (record.codes[block][g % 4][lane] >> (g / 4 * 4)) & 0x0f;
  }
  static const uint16_t* d(const Record& record, int32_t block, int32_t half) { return record.d[block]; }
  static const uint16_t* m(const Record& record, int32_t block) { return nullptr; }
};

struct CodesQ4_1 {
  using Record = RecordQ4_1;
  static constexpr int32_t kMaxCode = 15;
  static constexpr int32_t kOffset = 0;
  static constexpr int32_t kHalves = 1;
  static constexpr bool kHasMin = true;

  static int32_t code(const Record& record, int32_t block, int32_t g, int32_t lane) {
    return (record.codes[block][g % 4][lane] >> (g / 4 * 4)) & 0x0f;
  }
  static const uint16_t* d(const Record& record, int32_t block, int32_t half) { return record.d[block]; }
  static const uint16_t* m(const Record& record, int32_t block) { return record.m[block]; }
};

struct CodesQ5_0 {
  using Record = RecordQ5_0;
  static constexpr int32_t kMaxCode = 31;
  static constexpr int32_t kOffset = 16;
  static constexpr int32_t kHalves = 1;
  static constexpr bool kHasMin = false;

  static int32_t code(const Record& record, int32_t block, int32_t g, int32_t lane) {
    const int32_t nibble = (record.nibbles[block][g % 4][lane] >> (g / 4 * 4)) & 0x0f;
    return nibble | ((record.fifth[block][lane] >> g) & 1) << 4;
  }
  static const uint16_t* d(const Record& record, int32_t block, int32_t half) { return record.d[block]; }
  static const uint16_t* m(const Record& record, int32_t block) { return nullptr; }
};

struct CodesQ6_K {
  using Record = RecordQ6_K;
  static constexpr int32_t kMaxCode = 63;
  static constexpr int32_t kOffset = 32;
  static constexpr int32_t kHalves = 2;
  static constexpr bool kHasMin = false;

  static int32_t code(const Record& record, int32_t block, int32_t g, int32_t lane) {
    const int32_t nibble = (record.nibbles[block][g % 4][lane] >> (g / 4 * 4)) & 0x0f;
    return nibble | ((record.upper[block][g / 4][lane] >> (g % 4 * 2)) & 3) << 4;
  }
  static const uint16_t* d(const Record& record, int32_t block, int32_t half) { return record.d[block][half]; }
  static const uint16_t* m(const Record& record, int32_t block) { return nullptr; }
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
  static const uint16_t* m(const Record& record, int32_t block) { return nullptr; }
};

// 32-blocks of a packed row or of the activations, padding included.
inline int32_t num_padded_blocks(int32_t cols) { return (cols + kRecordCols - 1) / kRecordCols * 2; }

}  // namespace
}  // namespace octavo
