#include "formats/packed.h"

#include <algorithm>
#include <cstring>

#include "formats/f16.h"
#include "formats/q4_0.h"
#include "formats/q4_1.h"
#include "formats/q4_k.h"
#include "formats/q5_0.h"
#include "formats/q6_k.h"
#include "formats/q8_0.h"

namespace octavo {
namespace {

constexpr float kMaxF16 = 65504.0f;

// GGUF tensors may start at any byte.
template <class T>
T load(const std::byte* source) {
  T value;
  std::memcpy(&value, source, sizeof(T));
  return value;
}

// In this argument order min and max keep a NaN from the file a NaN.
uint16_t round_scale(float scale) { return f32_to_f16(std::min(std::max(scale, -kMaxF16), kMaxF16)); }

// 16 nibble bytes of one row (code i low, code 16 + i high) into the row's lane of 4 nibble groups.
void put_nibbles(uint8_t (&groups)[4][64], int32_t row, const uint8_t (&nibbles)[16]) {
  for (int32_t j = 0; j < 4; ++j) std::memcpy(&groups[j][4 * row], &nibbles[4 * j], 4);
}

// Each packer: Record, the columns of one source block, and put() for one source block at `column` of a row.
// records points at the panel's first record; `row` is the row within the panel.
struct PackQ4_0 {
  using Record = RecordQ4_0;
  using Block = BlockQ4_0;
  static constexpr int32_t kBlockCols = 32;

  static void put(const Block& block, int32_t row, int32_t column, Record* records) {
    Record& record = records[column / kRecordCols];
    const int32_t half = column / 32 % 2;
    put_nibbles(record.codes[half], row, block.codes);
    record.d[half][row] = block.d;
  }
};

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

// Gathers bits 0, 4, 8 ... 28 into one byte.
uint8_t gather_every_fourth_bit(uint32_t bits) {
  bits &= 0x11111111;
  bits = (bits | bits >> 3) & 0x03030303;
  bits = (bits | bits >> 6) & 0x000f000f;
  return static_cast<uint8_t>(bits | bits >> 12);
}

struct PackQ5_0 {
  using Record = RecordQ5_0;
  using Block = BlockQ5_0;
  static constexpr int32_t kBlockCols = 32;

  static void put(const Block& block, int32_t row, int32_t column, Record* records) {
    Record& record = records[column / kRecordCols];
    const int32_t half = column / 32 % 2;
    put_nibbles(record.nibbles[half], row, block.nibbles);
    const uint32_t fifth = block.fifth[0] | block.fifth[1] << 8 | block.fifth[2] << 16 |
                           static_cast<uint32_t>(block.fifth[3]) << 24;
    for (int32_t b = 0; b < 4; ++b) record.fifth[half][4 * row + b] = gather_every_fourth_bit(fifth >> b);
    record.d[half][row] = block.d;
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

struct PackQ4_K {
  using Record = RecordQ4_1;
  using Block = BlockQ4_K;
  static constexpr int32_t kBlockCols = 256;

  static void put(const Block& block, int32_t row, int32_t column, Record* records) {
    const float d = f16_to_f32(block.d);
    const float dmin = f16_to_f32(block.dmin);
    for (int32_t i = 0; i < 8; ++i) {
      Record& record = records[column / kRecordCols + i / 2];
      const int32_t half = i % 2;
      const uint8_t* source = block.nibbles + 32 * (i / 2);
      uint8_t nibbles[16];
      for (int32_t k = 0; k < 16; ++k) {
        const int32_t low = (source[k] >> 4 * half) & 0x0f;
        const int32_t high = (source[16 + k] >> 4 * half) & 0x0f;
        nibbles[k] = static_cast<uint8_t>(low | high << 4);
      }
      put_nibbles(record.codes[half], row, nibbles);
      record.d[half][row] = round_scale(d * static_cast<float>(scale(block, i)));
      record.m[half][row] = round_scale(-dmin * static_cast<float>(min(block, i)));
    }
  }

  static int32_t scale(const Block& block, int32_t i) {
    const uint8_t* s = block.scales;
    return i < 4 ? s[i] & 0x3f : (s[4 + i] & 0x0f) | (s[i - 4] >> 6 << 4);
  }
  static int32_t min(const Block& block, int32_t i) {
    const uint8_t* s = block.scales;
    return i < 4 ? s[4 + i] & 0x3f : s[4 + i] >> 4 | (s[i] >> 6 << 4);
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
      const int32_t blk = i % 2;
      const uint8_t* source = block.nibbles + 64 * (i / 4) + 32 * (i % 2);
      const int32_t shift = i % 4 < 2 ? 0 : 4;
      uint8_t nibbles[16];
      for (int32_t k = 0; k < 16; ++k) {
        const int32_t low = (source[k] >> shift) & 0x0f;
        const int32_t high = (source[16 + k] >> shift) & 0x0f;
        nibbles[k] = static_cast<uint8_t>(low | high << 4);
      }
      put_nibbles(record.nibbles[blk], row, nibbles);
      put_upper(block.upper + 32 * (i / 4), 2 * (i % 4), row, record.upper[blk]);
      for (int32_t half = 0; half < 2; ++half) {
        record.d[blk][half][row] = round_scale(d * static_cast<float>(block.scales[2 * i + half]));
      }
    }
  }

  // Two bits at `shift` of 32 upper bytes into the row's lane of both planes, four bytes at a time.
  static void put_upper(const uint8_t* upper, int32_t shift, int32_t row, uint8_t (&planes)[2][64]) {
    for (int32_t plane = 0; plane < 2; ++plane) {
      uint32_t fields = 0;
      for (int32_t i = 0; i < 4; ++i) {
        uint32_t four;
        std::memcpy(&four, &upper[16 * plane + 4 * i], 4);
        fields |= ((four >> shift) & 0x03030303) << 2 * i;
      }
      std::memcpy(&planes[plane][4 * row], &fields, 4);
    }
  }
};

template <class Packer>
void pack_panel(const std::byte* source, int32_t num_rows, int32_t cols, std::byte* panel) {
  using Record = typename Packer::Record;
  using Block = typename Packer::Block;
  Record* records = reinterpret_cast<Record*>(panel);
  const int32_t num_blocks = cols / Packer::kBlockCols;
  // Blocks outer: the records being written stay in the L1 cache.
  for (int32_t b = 0; b < num_blocks; ++b) {
    for (int32_t row = 0; row < num_rows; ++row) {
      const size_t index = static_cast<size_t>(row) * num_blocks + b;
      Packer::put(load<Block>(source + index * sizeof(Block)), row, b * Packer::kBlockCols, records);
    }
  }
}

template <class T>
void pack_float_panel(const std::byte* source, int32_t num_rows, int32_t cols, std::byte* panel) {
  for (int32_t row = 0; row < num_rows; ++row) {
    for (int32_t k = 0; k < cols; ++k) {
      std::memcpy(panel + (static_cast<size_t>(k) * kPanelRows + row) * sizeof(T),
                  source + (static_cast<size_t>(row) * cols + k) * sizeof(T), sizeof(T));
    }
  }
}

using PackPanel = void (*)(const std::byte* source, int32_t num_rows, int32_t cols, std::byte* panel);

struct FormatInfo {
  PackPanel pack;
  int32_t block_cols;   // columns of a source block
  size_t block_bytes;   // bytes of a source block
  size_t record_bytes;  // of 64 columns
};

template <class Packer>
constexpr FormatInfo describe() {
  return {pack_panel<Packer>, Packer::kBlockCols, sizeof(typename Packer::Block), sizeof(typename Packer::Record)};
}

FormatInfo format_info(WeightFormat format) {
  switch (format) {
    case WeightFormat::F32: return {pack_float_panel<float>, 1, 4, kRecordCols * kPanelRows * 4};
    case WeightFormat::F16: return {pack_float_panel<uint16_t>, 1, 2, kRecordCols * kPanelRows * 2};
    case WeightFormat::Q4_0: return describe<PackQ4_0>();
    case WeightFormat::Q4_1: return describe<PackQ4_1>();
    case WeightFormat::Q5_0: return describe<PackQ5_0>();
    case WeightFormat::Q8_0: return describe<PackQ8_0>();
    case WeightFormat::Q4_K: return describe<PackQ4_K>();
    case WeightFormat::Q6_K: return describe<PackQ6_K>();
  }
  return {nullptr, 1, 0, 0};
}

}  // namespace

size_t packed_panel_bytes(WeightFormat format, int32_t cols) {
  const FormatInfo info = format_info(format);
  if (info.pack == nullptr || cols <= 0 || cols % info.block_cols != 0) return 0;
  if (info.block_cols == 1) {  // floats: no records, only a whole number of cache lines
    const size_t bytes = static_cast<size_t>(cols) * kPanelRows * info.block_bytes;
    return (bytes + 63) / 64 * 64;
  }
  return (static_cast<size_t>(cols) + kRecordCols - 1) / kRecordCols * info.record_bytes;
}

void pack_panels(WeightFormat format, const std::byte* source, int32_t rows, int32_t cols, int32_t panel_begin,
                 int32_t panel_end, std::byte* out) {
  const FormatInfo info = format_info(format);
  const size_t panel_bytes = packed_panel_bytes(format, cols);
  if (panel_bytes == 0) return;
  const size_t row_bytes = static_cast<size_t>(cols / info.block_cols) * info.block_bytes;
  for (int32_t p = panel_begin; p < panel_end; ++p) {
    const int32_t first_row = p * kPanelRows;
    std::byte* panel = out + p * panel_bytes;
    std::memset(panel, 0, panel_bytes);
    info.pack(source + first_row * row_bytes, std::min(kPanelRows, rows - first_row), cols, panel);
  }
}

}  // namespace octavo
