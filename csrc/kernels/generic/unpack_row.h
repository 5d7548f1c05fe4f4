// One row out of a packed matrix, as floats. Internal linkage, see packed_codes.h.
#pragma once

#include "formats/bf16.h"
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
    if constexpr (Codes::kHasMin) value += f16_to_f32(Codes::m(record, block, g / 4)[lane_row]);
    out[k] = value * scale;
  }
}

float to_float(float value) { return value; }
float to_float(uint16_t half) { return f16_to_f32(half); }
float to_float(Bf16 half) { return bf16_to_f32(half); }

template <class Weight>
void unpack_float_row(const std::byte* panel, int32_t lane_row, int32_t cols, float scale, float* out) {
  const auto* weights = reinterpret_cast<const Weight*>(panel);
  for (int32_t k = 0; k < cols; ++k) out[k] = to_float(weights[static_cast<size_t>(k) * kPanelRows + lane_row]) * scale;
}

using UnpackRow = void (*)(const std::byte* panel, int32_t lane_row, int32_t cols, float scale, float* out);

UnpackRow row_kernel(WeightFormat format) {
  switch (format) {
    case WeightFormat::F32: return unpack_float_row<float>;
    case WeightFormat::F16: return unpack_float_row<uint16_t>;
    case WeightFormat::BF16: return unpack_float_row<Bf16>;
    case WeightFormat::Q2_K: return unpack_quantised_row<CodesQ2_K>;
    case WeightFormat::Q3_K: return unpack_quantised_row<CodesQ3_K>;
    case WeightFormat::Q4_0: return unpack_quantised_row<CodesQ4_0>;
    case WeightFormat::Q4_1:
    case WeightFormat::Q4_K: return unpack_quantised_row<CodesQ4_1>;
    case WeightFormat::Q5_0: return unpack_quantised_row<CodesQ5_0>;
    case WeightFormat::Q5_1:
    case WeightFormat::Q5_K: return unpack_quantised_row<CodesQ5_1>;
    case WeightFormat::Q6_K: return unpack_quantised_row<CodesQ6_K>;
    case WeightFormat::Q8_0: return unpack_quantised_row<CodesQ8_0>;
    case WeightFormat::IQ4_NL:
    case WeightFormat::IQ4_XS: return unpack_quantised_row<CodesIQ4>;
  }
  return nullptr;
}

void unpack_row(const PackedMatrix& weights, int32_t row, float scale, float* out) {
  const std::byte* panel = weights.data + static_cast<size_t>(row / kPanelRows) * weights.panel_bytes;
  row_kernel(weights.format)(panel, row % kPanelRows, weights.cols, scale, out);
}

}  // namespace
}  // namespace octavo
