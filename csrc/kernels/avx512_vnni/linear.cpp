// Matrix kernels for AVX-512 with VNNI.
#include "kernels/linear_table.h"

#include "kernels/avx512_vnni/intrinsics.h"

#include "kernels/avx512_vnni/linear_float.h"
#include "kernels/avx512_vnni/linear_quantize.h"
#include "kernels/avx512_vnni/linear_tile.h"
#include "kernels/generic/unpack_row.h"

namespace octavo::avx512_vnni {
namespace {

// From here on a panel is unpacked once instead of in every tile. Where shifts and ands share their ports with vpdpbusd
// (Intel) this gains 5 to 20 %; where they do not (Zen 4) it costs 22 % at 32 tokens, 6 % at 128 and 1 % at 512.
constexpr int32_t kUnpackTokens = 128;

// What every panel of one multiply call shares.
struct Operands {
  const std::byte* acts;
  const float* x;
  size_t x_stride;
  int32_t tokens;
  int32_t cols;
  size_t out_stride;
  UnpackedRecord* scratch;
};

int32_t num_records(int32_t cols) { return num_padded_blocks(cols) / 2; }

// Calls tile(Width, first token, tokens in the tile) for each tile. The last one takes the narrowest kernel that holds
// it; tokens of the padding are computed and dropped.
template <class Tile>
OCTAVO_INLINE void for_each_tile(int32_t tokens, Tile tile) {
  int32_t first = 0;
  for (; first + kTileTokens <= tokens; first += kTileTokens) tile(FirstInts<8>{}, first, kTileTokens);
  const int32_t rest = tokens - first;
  if (rest > 4) {
    tile(FirstInts<8>{}, first, rest);
  } else if (rest > 2) {
    tile(FirstInts<4>{}, first, rest);
  } else if (rest == 2) {
    tile(FirstInts<2>{}, first, rest);
  } else if (rest == 1) {
    tile(FirstInts<1>{}, first, rest);
  }
}

template <class Source>
OCTAVO_INLINE void multiply_all_tiles(const std::byte* panel, const Operands& in, __mmask16 rows, float* out) {
  const int32_t records = num_records(in.cols);
  for_each_tile(in.tokens, [&]<int Width>(FirstInts<Width>, int32_t first, int32_t tokens) {
    const std::byte* acts = in.acts + first / kTileTokens * act_tile_bytes(in.cols);
    multiply_tile<Source, Width>(panel, records, reinterpret_cast<const ActBlock*>(acts),
                                 {out + first * in.out_stride, in.out_stride, tokens, rows});
  });
}

template <class Source>
void multiply_panel(const std::byte* panel, const Operands& in, __mmask16 rows, float* out) {
  multiply_all_tiles<Source>(panel, in, rows, out);
}

template <class Source>
void multiply_panel_unpacked(const std::byte* panel, const Operands& in, __mmask16 rows, float* out) {
  unpack_panel<Source>(panel, num_records(in.cols), in.scratch);
  const auto* unpacked = reinterpret_cast<const std::byte*>(in.scratch);
  multiply_all_tiles<SourceUnpacked<typename Source::Codes>>(unpacked, in, rows, out);
}

template <class Weight>
void multiply_float_panel(const std::byte* bytes, const Operands& in, __mmask16 rows, float* out) {
  const FloatPanel<Weight> panel = {reinterpret_cast<const Weight*>(bytes), in.cols};
  for_each_tile(in.tokens, [&]<int Width>(FirstInts<Width>, int32_t first, int32_t tokens) {
    multiply_float_tile<Weight, Width>(panel, in.x + first * in.x_stride, in.x_stride,
                                       {out + first * in.out_stride, in.out_stride, tokens, rows});
  });
}

using MultiplyPanel = void (*)(const std::byte* panel, const Operands& in, __mmask16 rows, float* out);

template <class Source>
MultiplyPanel quantised_kernel(int32_t tokens) {
  return tokens < kUnpackTokens ? multiply_panel<Source> : multiply_panel_unpacked<Source>;
}

MultiplyPanel panel_kernel(WeightFormat format, int32_t tokens) {
  switch (format) {
    case WeightFormat::F32: return multiply_float_panel<float>;
    case WeightFormat::F16: return multiply_float_panel<uint16_t>;
    case WeightFormat::Q4_0: return quantised_kernel<SourceQ4_0>(tokens);
    case WeightFormat::Q4_1:
    case WeightFormat::Q4_K: return quantised_kernel<SourceQ4_1>(tokens);
    case WeightFormat::Q5_0: return quantised_kernel<SourceQ5_0>(tokens);
    case WeightFormat::Q6_K: return quantised_kernel<SourceQ6_K>(tokens);
    case WeightFormat::Q8_0: return multiply_panel<SourceQ8_0>;  // its codes are bytes already
  }
  return nullptr;
}

void multiply(const PackedMatrix& weights, const std::byte* acts, const float* x, size_t x_stride, int32_t tokens,
              int32_t panel_begin, int32_t panel_end, float* out, size_t out_stride, std::byte* scratch) {
  const MultiplyPanel kernel = panel_kernel(weights.format, tokens);
  const Operands in = {acts, x, x_stride, tokens, weights.cols, out_stride,
                       reinterpret_cast<UnpackedRecord*>(scratch)};
  for (int32_t p = panel_begin; p < panel_end; ++p) {
    const int32_t first_row = p * kPanelRows;
    const int32_t num_rows = weights.rows - first_row;
    const auto mask = static_cast<__mmask16>(num_rows >= kPanelRows ? 0xffff : (1 << num_rows) - 1);
    kernel(weights.data + p * weights.panel_bytes, in, mask, out + first_row);
  }
}

size_t scratch_bytes(int32_t cols) { return static_cast<size_t>(num_records(cols)) * sizeof(UnpackedRecord); }

}  // namespace

const LinearKernels linear_kernels = {act_bytes, quantize, multiply, scratch_bytes, unpack_row};

}  // namespace octavo::avx512_vnni
