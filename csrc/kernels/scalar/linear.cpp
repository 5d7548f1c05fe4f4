// Matrix kernels in plain C++: right everywhere, laid out so that a compiler vectorises the inner loops.
#include "kernels/linear_table.h"

#include "formats/f16.h"
#include "kernels/generic/act_tile.h"
#include "kernels/generic/unpack_row.h"

namespace octavo::scalar {
namespace {

using Rows = int32_t;

#include "kernels/generic/linear_tile.h"

// --- quantisation ---------------------------------------------------------------------------------------------------

#include "kernels/generic/quantize_types.h"

constexpr int32_t kPairTiles = 0;

// One kernel for any number of tokens.
constexpr int kWidestTile = kTileTokens;
constexpr int kNarrowestTile = kTileTokens;

struct BlockValues {
  float v[32];
};

OCTAVO_INLINE BlockValues load_block(const float* row, int32_t block, int32_t cols) {
  BlockValues x;
  for (int32_t k = 0; k < 32; ++k) x.v[k] = 32 * block + k < cols ? row[32 * block + k] : 0.0f;
  return x;
}

OCTAVO_INLINE bool any(Ints8 mask) {
  int32_t found = 0;
  for (int32_t i = 0; i < 8; ++i) found |= mask[i];
  return found != 0;
}

OCTAVO_INLINE Ints8 max_magnitudes(const BlockValues (&x)[8]) {
  Ints8 most = {};
  for (int32_t i = 0; i < 8; ++i) {
    for (const float value : x[i].v) {
      const int32_t bits = __builtin_bit_cast(int32_t, value) & 0x7fffffff;
      most[i] = bits > most[i] ? bits : most[i];
    }
  }
  return most;
}

OCTAVO_INLINE void quantize_values(const BlockValues (&x)[8], Floats8 inverse, int8_t* const (&q)[8], Ints8 (&sums)[2]) {
  for (int32_t i = 0; i < 8; ++i) {
    for (int32_t half = 0; half < 2; ++half) {
      int32_t sum = 0;
      for (int32_t k = 16 * half; k < 16 * half + 16; ++k) {
        // Adding 1.5 * 2^23 rounds to nearest even and leaves the integer in the low bits. What is not finite gives any
        // code, to be replaced.
        const float shifted = x[i].v[k] * inverse[i] + 12582912.0f;
        q[i][k] = static_cast<int8_t>(__builtin_bit_cast(uint32_t, shifted) - 0x4b400000u);
        sum += q[i][k];
      }
      sums[half][i] = sum;
    }
  }
}

void subtract_terms(const ActBlock& block, int32_t t, BlockValues& values) {
  for (int32_t k = 0; k < 32; ++k) {
    float x = values.v[k] < kMaxFloat ? values.v[k] : kMaxFloat;
    x = x > -kMaxFloat ? x : -kMaxFloat;
    // Exact in double, so rounded once.
    values.v[k] = static_cast<float>(static_cast<double>(x) - static_cast<double>(block.d[t]) * block.q[t][k]);
  }
}

#include "kernels/generic/linear_quantize.h"

// --- products -------------------------------------------------------------------------------------------------------

// The codes are read out of the records by packed_codes.h itself.
template <class CodesOfFormat>
struct PackedSource {
  using Codes = CodesOfFormat;
  using Record = typename Codes::Record;
};
using SourceQ2_K = PackedSource<CodesQ2_K>;
using SourceQ3_K = PackedSource<CodesQ3_K>;
using SourceQ4_0 = PackedSource<CodesQ4_0>;
using SourceQ4_1 = PackedSource<CodesQ4_1>;
using SourceQ5_0 = PackedSource<CodesQ5_0>;
using SourceQ5_1 = PackedSource<CodesQ5_1>;
using SourceQ6_K = PackedSource<CodesQ6_K>;
using SourceQ8_0 = PackedSource<CodesQ8_0>;
using SourceIQ4 = PackedSource<CodesIQ4>;

// One 32-block of a panel, widened so that a row's dot product is a run of int16 pairs.
struct UnpackedBlock {
  int16_t codes[kPanelRows][32];
  float d[2][kPanelRows];
  float m[2][kPanelRows];
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
  for (int32_t half = 0; half < (Codes::kHasMin ? Codes::kHalves : 0); ++half) {
    for (int32_t row = 0; row < kPanelRows; ++row) out.m[half][row] = f16_to_f32(Codes::m(record, block, half)[row]);
  }
}

template <class Codes>
int32_t start_sum(const ActBlock& act, int32_t t, int32_t half) {
  if constexpr (Codes::kOffset == 4) return act.start32[half][t] >> 3;
  if constexpr (Codes::kOffset == 32) return act.start32[half][t];
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
  if constexpr (Codes::kHasMin && Codes::kHalves == 2) {
    const float sum = -0x1p-5f * static_cast<float>(act.start32[Half][t]);
    for (int32_t row = 0; row < kPanelRows; ++row) acc[row] += sum * (weights.m[Half][row] * act.d[t]);
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
  if constexpr (Codes::kHasMin && Codes::kHalves == 1) {
    for (int32_t row = 0; row < kPanelRows; ++row) acc[row] += weights.m[0][row] * act.d_sum[t];
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

template <class Source, int Width>
void multiply_tile(const typename Source::Record* records, int32_t num_records, const ActBlock* acts, int32_t lane,
                   const TileOut& tile) {
  const TileIn<Source> in = {records, num_records, acts, lane};
  using Codes = typename Source::Codes;
  const int32_t places = tile.tokens * tile.terms;
  float acc[kTileTokens][kPanelRows] = {};
  for (int32_t b = 0; b < 2 * in.num_records; ++b) {
    UnpackedBlock block;
    unpack_block<Codes>(in.records[b / 2], b % 2, block);
    for (int32_t t = 0; t < places; ++t) accumulate_block<Codes>(block, in.acts[b], t, acc[t]);
  }
  if (tile.terms == 2) {
    for (int32_t t = 0; t < tile.tokens; ++t) {
      for (int32_t row = 0; row < kPanelRows; ++row) acc[2 * t][row] += acc[2 * t + 1][row];
      store_rows(acc[2 * t], tile.rows, tile.out + t * tile.stride);
    }
    return;
  }
  for (int32_t i = 0; i < kResidualBlocks; ++i) {
    accumulate_residual<Codes>(in.records, in.residual(i), tile.tokens, acc);
  }
  for (int32_t t = 0; t < tile.tokens; ++t) store_rows(acc[t], tile.rows, tile.out + t * tile.stride);
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
template <class T>
const float* widen(const T* weights, int32_t count, float* buffer) {
  for (int32_t i = 0; i < count * kPanelRows; ++i) buffer[i] = to_float(weights[i]);
  return buffer;
}

template <class Weight, int Width>
void multiply_float_tile(FloatPanel<Weight> panel, const float* x, size_t x_stride, const TileOut& tile) {
  constexpr int32_t kChunk = 64;
  float buffer[kChunk * kPanelRows];
  FloatSums sums[kTileTokens] = {};
  for (int32_t k = 0; k < panel.cols; k += kChunk) {
    const int32_t count = panel.cols - k < kChunk ? panel.cols - k : kChunk;
    const float* weights = widen(panel.weights + static_cast<size_t>(k) * kPanelRows, count, buffer);
    for (int32_t t = 0; t < tile.tokens; ++t) {
      const float* row = x + t * x_stride + k;
      accumulate_columns(weights, count / 2 * 2, row, sums[t]);
      if (count % 2 == 0) continue;
      const float* last = weights + static_cast<size_t>(count - 1) * kPanelRows;
      for (int32_t r = 0; r < kPanelRows; ++r) sums[t].even[r] += last[r] * row[count - 1];
    }
  }
  for (int32_t t = 0; t < tile.tokens; ++t) {
    for (int32_t r = 0; r < kPanelRows; ++r) sums[t].even[r] += sums[t].odd[r];
    store_rows(sums[t].even, tile.rows, tile.out + t * tile.stride);
  }
}

OCTAVO_INLINE Rows first_rows(int32_t count) { return count; }

#include "kernels/generic/linear_driver.h"

}  // namespace

const LinearKernels linear_kernels = {act_bytes, quantize, multiply, unpack_row};

}  // namespace octavo::scalar
