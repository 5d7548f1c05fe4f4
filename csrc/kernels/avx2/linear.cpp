// Matrix kernels for AVX2 with FMA and F16C.
#include "kernels/table.h"

#include "kernels/avx2/linear_float.h"
#include "kernels/avx2/linear_quantize.h"
#include "kernels/avx2/linear_tile.h"
#include "kernels/generic/unpack_row.h"

namespace octavo::avx2 {
namespace {

// What every panel of one multiply call shares.
struct Operands {
  const std::byte* acts;
  const float* x;
  size_t x_stride;
  int32_t tokens;
  int32_t cols;
  size_t out_stride;
};

template <int N>
struct Width {
  static constexpr int kTokens = N;
};

// Calls tile(Width, first token, tokens in the tile) for each tile of at most 4. The last one takes the narrowest
// kernel that holds it; tokens of the padding are computed and dropped.
template <class Tile>
OCTAVO_INLINE void for_each_tile(int32_t tokens, Tile tile) {
  int32_t first = 0;
  for (; first + 4 <= tokens; first += 4) tile(Width<4>{}, first, 4);
  const int32_t rest = tokens - first;
  if (rest == 3) {
    tile(Width<4>{}, first, rest);
  } else if (rest == 2) {
    tile(Width<2>{}, first, rest);
  } else if (rest == 1) {
    tile(Width<1>{}, first, rest);
  }
}

template <class Source>
void multiply_panel(const std::byte* panel, const Operands& in, int32_t rows, float* out) {
  const auto* records = reinterpret_cast<const typename Source::Record*>(panel);
  const int32_t num_records = num_padded_blocks(in.cols) / 2;
  for_each_tile(in.tokens, [&](auto width, int32_t first, int32_t tokens) {
    const auto* acts =
        reinterpret_cast<const ActBlock*>(in.acts + first / kTileTokens * act_tile_bytes(in.cols));
    const auto* residuals = reinterpret_cast<const ActResidual*>(acts + 2 * num_records);
    multiply_tile<Source, width.kTokens>({records, num_records, acts, residuals, first % kTileTokens},
                                         {out + first * in.out_stride, in.out_stride, tokens, rows});
  });
}

template <class Weight>
void multiply_float_panel(const std::byte* bytes, const Operands& in, int32_t rows, float* out) {
  const FloatPanel<Weight> panel = {reinterpret_cast<const Weight*>(bytes), in.cols};
  for_each_tile(in.tokens, [&](auto width, int32_t first, int32_t tokens) {
    multiply_float_tile<Weight, width.kTokens>(panel, in.x + first * in.x_stride, in.x_stride,
                                               {out + first * in.out_stride, in.out_stride, tokens, rows});
  });
}

using MultiplyPanel = void (*)(const std::byte* panel, const Operands& in, int32_t rows, float* out);

MultiplyPanel panel_kernel(WeightFormat format) {
  switch (format) {
    case WeightFormat::F32: return multiply_float_panel<float>;
    case WeightFormat::F16: return multiply_float_panel<uint16_t>;
    case WeightFormat::Q4_0: return multiply_panel<SourceQ4_0>;
    case WeightFormat::Q4_1:
    case WeightFormat::Q4_K: return multiply_panel<SourceQ4_1>;
    case WeightFormat::Q5_0: return multiply_panel<SourceQ5_0>;
    case WeightFormat::Q6_K: return multiply_panel<SourceQ6_K>;
    case WeightFormat::Q8_0: return multiply_panel<SourceQ8_0>;
  }
  return nullptr;
}

void multiply(const PackedMatrix& weights, const std::byte* acts, const float* x, size_t x_stride, int32_t tokens,
              int32_t panel_begin, int32_t panel_end, float* out, size_t out_stride, std::byte* scratch) {
  const MultiplyPanel kernel = panel_kernel(weights.format);
  const Operands in = {acts, x, x_stride, tokens, weights.cols, out_stride};
  for (int32_t p = panel_begin; p < panel_end; ++p) {
    const int32_t first_row = p * kPanelRows;
    const int32_t num_rows = weights.rows - first_row < kPanelRows ? weights.rows - first_row : kPanelRows;
    kernel(weights.data + p * weights.panel_bytes, in, num_rows, out + first_row);
  }
}

size_t scratch_bytes(int32_t cols) { return 0; }

}  // namespace

const LinearKernels linear_kernels = {act_bytes, quantize, multiply, scratch_bytes, unpack_row};

}  // namespace octavo::avx2
