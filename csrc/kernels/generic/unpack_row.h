// One row out of a packed matrix, as floats. Internal linkage, see packed_codes.h.
#pragma once

#include "formats/f16.h"
#include "kernels/generic/packed_codes.h"

namespace octavo {
namespace {

template <class Codes>
void unpack_quantised_row(const std::byte* panel, int32_t lane_row, int32_t cols, float scale, float* out) {
  const auto* records = reinterpret_cast<const typename Codes::Record*>(panel);
  for (int32_t k = 0; k < cols; ++k) {
    const auto& record = records[k / kRecordCols];
    const int32_t block = k / 32 % 2;
    const int32_t g = k % 32 / 4;
    const int32_t code = Codes::code(record, block, g, 4 * lane_row + k % 4);
    const float d = f16_to_f32(Codes::d(record, block, g / 4)[lane_row]);
    float value = d * static_cast<float>(code - Codes::kOffset);
    if constexpr (Codes::kHasMin) value += f16_to_f32(Codes::m(record, block)[lane_row]);
    out[k] = value * scale;
  }
}

void unpack_row(const PackedMatrix& weights, int32_t row, float scale, float* out) {
  const std::byte* panel = weights.data + static_cast<size_t>(row / kPanelRows) * weights.panel_bytes;
  const int32_t lane_row = row % kPanelRows;
  const int32_t cols = weights.cols;
  switch (weights.format) {
    case WeightFormat::F32:
      for (int32_t k = 0; k < cols; ++k) {
        out[k] = reinterpret_cast<const float*>(panel)[static_cast<size_t>(k) * kPanelRows + lane_row] * scale;
      }
      return;
    case WeightFormat::F16:
      for (int32_t k = 0; k < cols; ++k) {
        const size_t index = static_cast<size_t>(k) * kPanelRows + lane_row;
        out[k] = f16_to_f32(reinterpret_cast<const uint16_t*>(panel)[index]) * scale;
      }
      return;
    case WeightFormat::Q4_0: return unpack_quantised_row<CodesQ4_0>(panel, lane_row, cols, scale, out);
    case WeightFormat::Q4_1:
    case WeightFormat::Q4_K: return unpack_quantised_row<CodesQ4_1>(panel, lane_row, cols, scale, out);
    case WeightFormat::Q5_0: return unpack_quantised_row<CodesQ5_0>(panel, lane_row, cols, scale, out);
    case WeightFormat::Q8_0: return unpack_quantised_row<CodesQ8_0>(panel, lane_row, cols, scale, out);
    case WeightFormat::Q6_K: return unpack_quantised_row<CodesQ6_K>(panel, lane_row, cols, scale, out);
  }
}

}  // namespace
}  // namespace octavo
