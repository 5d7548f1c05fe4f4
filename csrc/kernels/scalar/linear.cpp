// Matrix kernels in plain C++: right everywhere, laid out so that a compiler vectorises the inner loops.
#include "kernels/linear_table.h"

#include "formats/f16.h"
#include "kernels/generic/act_tile.h"
#include "kernels/generic/packed_codes.h"
#include "kernels/generic/unpack_row.h"

namespace octavo::scalar {
namespace {

// Writes token t of a block from its 32 values.
void quantize_block(const float* x, int32_t t, ActBlock& block) {
  uint32_t max_bits = 0;  // of |x|: floats without sign order as integers, NaNs above infinity
  for (int32_t k = 0; k < 32; ++k) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, x[k]) & 0x7fffffff;
    max_bits = bits > max_bits ? bits : max_bits;
  }
  float d = max_bits == kInfBits ? kMaxFloat / 127.0f : __builtin_bit_cast(float, max_bits) / 127.0f;
  if (d < kMinActScale) d = 0.0f;

  int32_t sums[2] = {0, 0};
  const bool is_zero = d == 0.0f || max_bits > kInfBits;
  for (int32_t half = 0; half < 2; ++half) {
    for (int32_t k = 16 * half; k < 16 * half + 16; ++k) {
      float scaled = is_zero ? 0.0f : x[k] / d;
      scaled = scaled < 127.0f ? scaled : 127.0f;
      scaled = scaled > -127.0f ? scaled : -127.0f;
      // Adding 1.5 * 2^23 rounds to nearest even and leaves the integer in the low bits.
      const int32_t q = __builtin_bit_cast(int32_t, scaled + 12582912.0f) - 0x4b400000;
      block.q[t][k] = static_cast<int8_t>(q);
      sums[half] += q;
    }
  }
  const int32_t sum = sums[0] + sums[1];
  block.d[t] = d;
  block.d_sum[t] = d * static_cast<float>(sum);
  block.start8[t] = -8 * sum;
  block.start16[t] = -16 * sum;
  block.start128[t] = -128 * sum;
  block.start32[0][t] = -32 * sums[0];
  block.start32[1][t] = -32 * sums[1];
}

// A token's values of a block; zero past `cols`.
void load_block(const float* row, int32_t block, int32_t cols, float (&values)[32]) {
  for (int32_t k = 0; k < 32; ++k) values[k] = 32 * block + k < cols ? row[32 * block + k] : 0.0f;
}

// Replaces the values of a block by what its quantised form leaves over.
void subtract_terms(const ActBlock& block, int32_t t, float (&values)[32]) {
  for (int32_t k = 0; k < 32; ++k) {
    float x = values[k] < kMaxFloat ? values[k] : kMaxFloat;
    x = x > -kMaxFloat ? x : -kMaxFloat;
    // Exact in double, so rounded once.
    values[k] = static_cast<float>(static_cast<double>(x) - static_cast<double>(block.d[t]) * block.q[t][k]);
  }
}

// Whether fewer than kResidualBlocks of the token's blocks go before block `b` by scale, then by index. Never if it is
// NaN.
bool is_chosen(const ActBlock* blocks, int32_t num_blocks, int32_t t, int32_t b) {
  const float d = blocks[b].d[t];
  int32_t before = 0;
  for (int32_t i = 0; i < num_blocks; ++i) before += blocks[i].d[t] > d || (i < b && blocks[i].d[t] == d);
  return before < kResidualBlocks && d == d;
}

void quantize_residuals(const float* row, int32_t cols, int32_t t, ActBlock* blocks, ActResidual* residuals) {
  const int32_t num_blocks = num_padded_blocks(cols);
  int32_t num_chosen = 0;
  for (int32_t b = 0; b < num_blocks; ++b) num_chosen += is_chosen(blocks, num_blocks, t, b);
  float values[32] = {};
  for (int32_t i = 0; i < kResidualBlocks - num_chosen; ++i) {
    quantize_block(values, t, residuals[i].terms);
    residuals[i].block[t] = 0;
  }
  ActResidual* residual = residuals + kResidualBlocks - num_chosen;
  for (int32_t b = 0; b < num_blocks; ++b) {
    if (!is_chosen(blocks, num_blocks, t, b)) continue;
    load_block(row, b, cols, values);
    subtract_terms(blocks[b], t, values);
    quantize_block(values, t, residual->terms);
    blocks[b].d_sum[t] += residual->terms.d_sum[t];
    residual->block[t] = b;
    ++residual;
  }
}

void quantize(const float* x, size_t x_stride, int32_t tokens, int32_t cols, int32_t tile_begin, int32_t tile_end,
              std::byte* acts) {
  const int32_t num_blocks = num_padded_blocks(cols);
  for (int32_t tile = tile_begin; tile < tile_end; ++tile) {
    ActBlock* blocks = reinterpret_cast<ActBlock*>(acts + tile * act_tile_bytes(cols));
    ActResidual* residuals = reinterpret_cast<ActResidual*>(blocks + num_blocks);
    for (int32_t t = 0; t < kTileTokens; ++t) {
      const int32_t token = tile * kTileTokens + t;
      const int32_t token_cols = token < tokens ? cols : 0;
      const float* row = x + (token < tokens ? token : 0) * x_stride;
      for (int32_t b = 0; b < num_blocks; ++b) {
        float values[32];
        load_block(row, b, token_cols, values);
        quantize_block(values, t, blocks[b]);
      }
      quantize_residuals(row, token_cols, t, blocks, residuals);
    }
  }
}

// One 32-block of a panel, widened so that a row's dot product is a run of int16 pairs.
struct UnpackedBlock {
  int16_t codes[kPanelRows][32];
  float d[2][kPanelRows];
  float m[kPanelRows];
};

template <class Codes>
void unpack_block(const typename Codes::Record& record, int32_t block, UnpackedBlock& out) {
  for (int32_t g = 0; g < 8; ++g) {
    int16_t lanes[64];
    for (int32_t lane = 0; lane < 64; ++lane) {
      lanes[lane] = static_cast<int16_t>(Codes::code(record, block, g, lane));
    }
    for (int32_t row = 0; row < kPanelRows; ++row) __builtin_memcpy(&out.codes[row][4 * g], &lanes[4 * row], 8);
  }
  for (int32_t half = 0; half < Codes::kHalves; ++half) {
    for (int32_t row = 0; row < kPanelRows; ++row) out.d[half][row] = f16_to_f32(Codes::d(record, block, half)[row]);
  }
  if constexpr (Codes::kHasMin) {
    for (int32_t row = 0; row < kPanelRows; ++row) out.m[row] = f16_to_f32(Codes::m(record, block)[row]);
  }
}

template <class Codes>
int32_t start_sum(const ActBlock& act, int32_t t, int32_t half) {
  if constexpr (Codes::kHalves == 2) return act.start32[half][t];
  if constexpr (Codes::kOffset == 8) return act.start8[t];
  if constexpr (Codes::kOffset == 16) return act.start16[t];
  if constexpr (Codes::kOffset == 128) return act.start128[t];
  return 0;
}

// Adds the products of one run of k that shares a scale (a block, or a half of it) to a token's 16 row accumulators.
template <class Codes, int32_t Half>
void accumulate_run(const UnpackedBlock& weights, const ActBlock& act, int32_t t, const int16_t* q,
                    float (&acc)[kPanelRows]) {
  constexpr int32_t kRun = 32 / Codes::kHalves;
  const int32_t start = start_sum<Codes>(act, t, Half);
  int32_t sums[kPanelRows];
  for (int32_t row = 0; row < kPanelRows; ++row) {
    int32_t sum = start;
    // Left alone, the compiler unrolls a run of 16 before it vectorises, and it stays scalar.
#pragma GCC unroll 4
    for (int32_t k = Half * kRun; k < Half * kRun + kRun; ++k) sum += weights.codes[row][k] * q[k];
    sums[row] = sum;
  }
  for (int32_t row = 0; row < kPanelRows; ++row) {
    acc[row] += static_cast<float>(sums[row]) * (weights.d[Half][row] * act.d[t]);
  }
}

template <class Codes>
void accumulate_codes(const UnpackedBlock& weights, const ActBlock& act, int32_t t, float (&acc)[kPanelRows]) {
  int16_t q[32];
  for (int32_t k = 0; k < 32; ++k) q[k] = act.q[t][k];
  accumulate_run<Codes, 0>(weights, act, t, q, acc);
  if constexpr (Codes::kHalves == 2) accumulate_run<Codes, 1>(weights, act, t, q, acc);
}

template <class Codes>
void accumulate_block(const UnpackedBlock& weights, const ActBlock& act, int32_t t, float (&acc)[kPanelRows]) {
  accumulate_codes<Codes>(weights, act, t, acc);
  if constexpr (Codes::kHasMin) {
    for (int32_t row = 0; row < kPanelRows; ++row) acc[row] += weights.m[row] * act.d_sum[t];
  }
}

template <class Codes>
void accumulate_residual(const typename Codes::Record* records, const ActResidual& residual, int32_t tokens,
                         float (&acc)[kTileTokens][kPanelRows]) {
  int32_t unpacked = -1;
  UnpackedBlock block;
  for (int32_t t = 0; t < tokens; ++t) {
    const int32_t b = residual.block[t];
    if (b != unpacked) unpack_block<Codes>(records[b / 2], b % 2, block);
    unpacked = b;
    accumulate_codes<Codes>(block, residual.terms, t, acc[t]);
  }
}

void store_rows(const float (&acc)[kPanelRows], int32_t num_rows, float* out) {
  for (int32_t row = 0; row < num_rows; ++row) out[row] = acc[row];
}

// What every panel of one multiply call shares.
struct Operands {
  const std::byte* acts;
  const float* x;
  size_t x_stride;
  int32_t tokens;
  int32_t cols;
  size_t out_stride;
};

template <class Codes>
void multiply_panel(const std::byte* panel, const Operands& in, int32_t num_rows, float* out) {
  const int32_t num_blocks = num_padded_blocks(in.cols);
  const auto* records = reinterpret_cast<const typename Codes::Record*>(panel);
  const std::byte* tile = in.acts;
  for (int32_t first = 0; first < in.tokens; first += kTileTokens, tile += act_tile_bytes(in.cols)) {
    const ActBlock* acts = reinterpret_cast<const ActBlock*>(tile);
    const ActResidual* residuals = reinterpret_cast<const ActResidual*>(acts + num_blocks);
    const int32_t tile_tokens = in.tokens - first < kTileTokens ? in.tokens - first : kTileTokens;
    float acc[kTileTokens][kPanelRows] = {};
    for (int32_t b = 0; b < num_blocks; ++b) {
      UnpackedBlock block;
      unpack_block<Codes>(records[b / 2], b % 2, block);
      for (int32_t t = 0; t < tile_tokens; ++t) accumulate_block<Codes>(block, acts[b], t, acc[t]);
    }
    for (int32_t i = 0; i < kResidualBlocks; ++i) accumulate_residual<Codes>(records, residuals[i], tile_tokens, acc);
    for (int32_t t = 0; t < tile_tokens; ++t) store_rows(acc[t], num_rows, out + (first + t) * in.out_stride);
  }
}

// The accumulators of one token: for even and for odd k.
struct FloatSums {
  float even[kPanelRows];
  float odd[kPanelRows];
};

// Adds an even number of columns; weights: [count][16 rows].
void accumulate_columns(const float* weights, int32_t count, const float* x, FloatSums& sums) {
  FloatSums local = sums;
  for (int32_t k = 0; k < count; k += 2, weights += 2 * kPanelRows) {
    for (int32_t row = 0; row < kPanelRows; ++row) local.even[row] += weights[row] * x[k];
    for (int32_t row = 0; row < kPanelRows; ++row) local.odd[row] += weights[kPanelRows + row] * x[k + 1];
  }
  sums = local;
}

const float* widen(const float* weights, int32_t count, float* buffer) { return weights; }
const float* widen(const uint16_t* weights, int32_t count, float* buffer) {
  for (int32_t i = 0; i < count * kPanelRows; ++i) buffer[i] = f16_to_f32(weights[i]);
  return buffer;
}

template <class T>
void multiply_float_panel(const std::byte* panel, const Operands& in, int32_t num_rows, float* out) {
  constexpr int32_t kChunk = 64;
  float buffer[kChunk * kPanelRows];
  for (int32_t first = 0; first < in.tokens; first += kTileTokens) {
    const int32_t tile_tokens = in.tokens - first < kTileTokens ? in.tokens - first : kTileTokens;
    FloatSums sums[kTileTokens] = {};
    for (int32_t k = 0; k < in.cols; k += kChunk) {
      const int32_t count = in.cols - k < kChunk ? in.cols - k : kChunk;
      const T* chunk = reinterpret_cast<const T*>(panel) + static_cast<size_t>(k) * kPanelRows;
      const float* weights = widen(chunk, count, buffer);
      for (int32_t t = 0; t < tile_tokens; ++t) {
        const float* x = in.x + (first + t) * in.x_stride + k;
        accumulate_columns(weights, count / 2 * 2, x, sums[t]);
        if (count % 2 == 0) continue;
        const float* last = weights + static_cast<size_t>(count - 1) * kPanelRows;
        for (int32_t row = 0; row < kPanelRows; ++row) sums[t].even[row] += last[row] * x[count - 1];
      }
    }
    for (int32_t t = 0; t < tile_tokens; ++t) {
      for (int32_t row = 0; row < kPanelRows; ++row) sums[t].even[row] += sums[t].odd[row];
      store_rows(sums[t].even, num_rows, out + (first + t) * in.out_stride);
    }
  }
}

using MultiplyPanel = void (*)(const std::byte* panel, const Operands& in, int32_t num_rows, float* out);

MultiplyPanel panel_kernel(WeightFormat format) {
  switch (format) {
    case WeightFormat::F32: return multiply_float_panel<float>;
    case WeightFormat::F16: return multiply_float_panel<uint16_t>;
    case WeightFormat::Q4_0: return multiply_panel<CodesQ4_0>;
    case WeightFormat::Q4_1:
    case WeightFormat::Q4_K: return multiply_panel<CodesQ4_1>;
    case WeightFormat::Q5_0: return multiply_panel<CodesQ5_0>;
    case WeightFormat::Q8_0: return multiply_panel<CodesQ8_0>;
    case WeightFormat::Q6_K: return multiply_panel<CodesQ6_K>;
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

}  // namespace octavo::scalar
