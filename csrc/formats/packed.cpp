#include "formats/packed.h"

#include <algorithm>
#include <cstring>

#include "formats/pack_256.h"
#include "formats/pack_32.h"

namespace octavo {
namespace {

// GGUF tensors may start at any byte.
template <class T>
T load(const std::byte* source) {
  T value;
  std::memcpy(&value, source, sizeof(T));
  return value;
}

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
    case WeightFormat::F16:
    case WeightFormat::BF16: return {pack_float_panel<uint16_t>, 1, 2, kRecordCols * kPanelRows * 2};
    case WeightFormat::Q4_0: return describe<PackQ4_0>();
    case WeightFormat::Q4_1: return describe<PackQ4_1>();
    case WeightFormat::Q5_0: return describe<PackQ5_0>();
    case WeightFormat::Q5_1: return describe<PackQ5_1>();
    case WeightFormat::Q8_0: return describe<PackQ8_0>();
    case WeightFormat::Q2_K: return describe<PackQ2_K>();
    case WeightFormat::Q3_K: return describe<PackQ3_K>();
    case WeightFormat::Q4_K: return describe<PackQ4_K>();
    case WeightFormat::Q5_K: return describe<PackQ5_K>();
    case WeightFormat::Q6_K: return describe<PackQ6_K>();
    case WeightFormat::IQ4_NL: return describe<PackIQ4_NL>();
    case WeightFormat::IQ4_XS: return describe<PackIQ4_XS>();
  }
  return {nullptr, 1, 0, 0};
}

}  // namespace

size_t source_row_bytes(WeightFormat format, int32_t cols) {
  const FormatInfo info = format_info(format);
  return static_cast<size_t>(cols / info.block_cols) * info.block_bytes;
}

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
  const size_t row_bytes = source_row_bytes(format, cols);
  for (int32_t p = panel_begin; p < panel_end; ++p) {
    const int32_t first_row = p * kPanelRows;
    std::byte* panel = out + p * panel_bytes;
    std::memset(panel, 0, panel_bytes);
    info.pack(source + first_row * row_bytes, std::min(kPanelRows, rows - first_row), cols, panel);
  }
}

}  // namespace octavo
