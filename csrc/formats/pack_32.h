// Packers of the formats with blocks of 32, and the pieces that all packers share. Included by packed.cpp only.
//
// Each packer: Record, the columns of one source block, and put() for one source block at `column` of a row. records
// points at the panel's first record; `row` is the row within the panel.
#pragma once

#include <cstring>

#include "formats/iq4_nl.h"
#include "formats/packed.h"
#include "formats/q4_0.h"
#include "formats/q4_1.h"
#include "formats/q5_0.h"
#include "formats/q5_1.h"
#include "formats/q8_0.h"

namespace octavo {
namespace {

// 16 nibble bytes of one row (code i low, code 16 + i high) into the row's lane of 4 nibble groups.
void put_nibbles(uint8_t (&groups)[4][64], int32_t row, const uint8_t (&nibbles)[16]) {
  for (int32_t j = 0; j < 4; ++j) std::memcpy(&groups[j][4 * row], &nibbles[4 * j], 4);
}

// Gathers bits 0, 4, 8 ... 28 into one byte.
uint8_t gather_every_fourth_bit(uint32_t bits) {
  bits &= 0x11111111;
  bits = (bits | bits >> 3) & 0x03030303;
  bits = (bits | bits >> 6) & 0x000f000f;
  return static_cast<uint8_t>(bits | bits >> 12);
}

// One bit of each of 32 codes (bit k: code k) into the row's lane of a bit plane (byte b, bit g: code 4g + b).
void put_bit_plane(uint8_t (&plane)[64], int32_t row, uint32_t bits) {
  for (int32_t b = 0; b < 4; ++b) plane[4 * row + b] = gather_every_fourth_bit(bits >> b);
}

uint32_t little_endian(const uint8_t (&bytes)[4]) {
  return bytes[0] | bytes[1] << 8 | bytes[2] << 16 | static_cast<uint32_t>(bytes[3]) << 24;
}

// Nibbles and a scale as they are: Q4_0, IQ4_NL.
template <class SourceBlock>
struct PackNibbles {
  using Record = RecordQ4_0;
  using Block = SourceBlock;
  static constexpr int32_t kBlockCols = 32;

  static void put(const Block& block, int32_t row, int32_t column, Record* records) {
    Record& record = records[column / kRecordCols];
    const int32_t half = column / 32 % 2;
    put_nibbles(record.codes[half], row, block.codes);
    record.d[half][row] = block.d;
  }
};
using PackQ4_0 = PackNibbles<BlockQ4_0>;
using PackIQ4_NL = PackNibbles<BlockIQ4_NL>;

struct PackQ4_1 {
  using Record = RecordQ4_1;
  using Block = BlockQ4_1;
  static constexpr int32_t kBlockCols = 32;

  static void put(const Block& block, int32_t row, int32_t column, Record* records) {
    Record& record = records[column / kRecordCols];
    const int32_t half = column / 32 % 2;
    put_nibbles(record.codes[half], row, block.codes);
    record.d[half][row] = block.d;
    record.m[half][row] = block.m;
  }
};

struct PackQ5_0 {
  using Record = RecordQ5_0;
  using Block = BlockQ5_0;
  static constexpr int32_t kBlockCols = 32;

  static void put(const Block& block, int32_t row, int32_t column, Record* records) {
    Record& record = records[column / kRecordCols];
    const int32_t half = column / 32 % 2;
    put_nibbles(record.block[half].nibbles, row, block.nibbles);
    put_bit_plane(record.block[half].fifth, row, little_endian(block.fifth));
    record.d[half][row] = block.d;
  }
};

struct PackQ5_1 {
  using Record = RecordQ5_1;
  using Block = BlockQ5_1;
  static constexpr int32_t kBlockCols = 32;

  static void put(const Block& block, int32_t row, int32_t column, Record* records) {
    Record& record = records[column / kRecordCols];
    const int32_t half = column / 32 % 2;
    put_nibbles(record.block[half].nibbles, row, block.nibbles);
    put_bit_plane(record.block[half].fifth, row, little_endian(block.fifth));
    record.d[half][row] = block.d;
    record.m[half][row] = block.m;
  }
};

struct PackQ8_0 {
  using Record = RecordQ8_0;
  using Block = BlockQ8_0;
  static constexpr int32_t kBlockCols = 32;

  static void put(const Block& block, int32_t row, int32_t column, Record* records) {
    Record& record = records[column / kRecordCols];
    const int32_t half = column / 32 % 2;
    for (int32_t g = 0; g < 8; ++g) {
      uint32_t codes;
      std::memcpy(&codes, &block.codes[4 * g], 4);
      codes ^= 0x80808080;  // + 128, as unsigned bytes
      std::memcpy(&record.codes[half][g][4 * row], &codes, 4);
    }
    record.d[half][row] = block.d;
  }
};

}  // namespace
}  // namespace octavo
