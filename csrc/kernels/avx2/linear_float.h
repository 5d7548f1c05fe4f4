// F32, F16 and BF16 panels times float activations, with one accumulator for even and one for odd k.
#pragma once

#include "formats/bf16.h"
#include "kernels/avx2/linear_tile.h"

namespace octavo::avx2 {
namespace {

OCTAVO_INLINE __m256 load_row_of_k(const float* panel, int32_t k) {
  return _mm256_load_ps(panel + static_cast<size_t>(k) * kPanelRows);
}
OCTAVO_INLINE __m256 load_row_of_k(const uint16_t* panel, int32_t k) {
  return load_f16(panel + static_cast<size_t>(k) * kPanelRows);
}
OCTAVO_INLINE __m256 load_row_of_k(const Bf16* panel, int32_t k) {
  const auto* halves = reinterpret_cast<const __m128i*>(panel + static_cast<size_t>(k) * kPanelRows);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_load_si128(halves)), 16));
}

template <int... T>
OCTAVO_INLINE void add_column(Ints<T...>, __m256 weights, const float* const (&x)[sizeof...(T)], int32_t k,
                              __m256 (&acc)[sizeof...(T)]) {
  ((acc[T] = _mm256_fmadd_ps(weights, _mm256_set1_ps(x[T][k]), acc[T])), ...);
}

template <int Tokens, class Weight>
OCTAVO_INLINE void prefetch_columns(FloatPanel<Weight> panel, int32_t k) {
  if constexpr (Tokens > 1) {
    prefetch_weights<2 * kPanelRows * sizeof(Weight)>(panel.weights + static_cast<size_t>(k) * kPanelRows);
  }
}

template <int... T>
struct FloatSums {
  __m256 even[sizeof...(T)] = {((void)T, _mm256_setzero_ps())...};
  __m256 odd[sizeof...(T)] = {((void)T, _mm256_setzero_ps())...};
};

// Rows Row .. Row + 7.
template <int Row, int... T>
OCTAVO_INLINE void store_sums(Ints<T...>, const TileOut& tile, const FloatSums<T...>& sums) {
  (store_token<Row>(tile, T, _mm256_add_ps(sums.even[T], sums.odd[T])), ...);
}

template <int Row, class Weight, int... T>
OCTAVO_INLINE void multiply_eight_rows(Ints<T...> tokens, FloatPanel<Weight> panel,
                                       const float* const (&x)[sizeof...(T)], const TileOut& tile) {
  FloatSums<T...> sums;
  int32_t k = 0;
  for (; k + 2 <= panel.cols; k += 2) {
    if constexpr (Row == 0) prefetch_columns<sizeof...(T)>(panel, k);
    add_column(tokens, load_row_of_k(panel.weights + Row, k), x, k, sums.even);
    add_column(tokens, load_row_of_k(panel.weights + Row, k + 1), x, k + 1, sums.odd);
  }
  if (k < panel.cols) add_column(tokens, load_row_of_k(panel.weights + Row, k), x, k, sums.even);
  store_sums<Row>(tokens, tile, sums);
}

// All rows of few tokens at once: enough chains to hide the latency of a multiply-add, and one stream.
template <class Weight, int... T>
OCTAVO_INLINE void multiply_all_rows(Ints<T...> tokens, FloatPanel<Weight> panel,
                                     const float* const (&x)[sizeof...(T)], const TileOut& tile) {
  FloatSums<T...> upper;
  FloatSums<T...> lower;
  int32_t k = 0;
  for (; k + 2 <= panel.cols; k += 2) {
    prefetch_columns<sizeof...(T)>(panel, k);
    add_column(tokens, load_row_of_k(panel.weights, k), x, k, upper.even);
    add_column(tokens, load_row_of_k(panel.weights + 8, k), x, k, lower.even);
    add_column(tokens, load_row_of_k(panel.weights, k + 1), x, k + 1, upper.odd);
    add_column(tokens, load_row_of_k(panel.weights + 8, k + 1), x, k + 1, lower.odd);
  }
  if (k < panel.cols) {
    add_column(tokens, load_row_of_k(panel.weights, k), x, k, upper.even);
    add_column(tokens, load_row_of_k(panel.weights + 8, k), x, k, lower.even);
  }
  store_sums<0>(tokens, tile, upper);
  store_sums<8>(tokens, tile, lower);
}

template <class Weight, int... T>
OCTAVO_INLINE void multiply_float_tokens(Ints<T...> tokens, FloatPanel<Weight> panel, const float* x, size_t x_stride,
                                         const TileOut& tile) {
  // Tokens past the tile's last are computed from the last one's values and not stored.
  const float* const rows[] = {x + (T < tile.tokens ? T : tile.tokens - 1) * x_stride...};
  if constexpr (sizeof...(T) <= 2) {
    multiply_all_rows(tokens, panel, rows, tile);
  } else {
    multiply_eight_rows<0>(tokens, panel, rows, tile);
    multiply_eight_rows<8>(tokens, panel, rows, tile);
  }
}

template <class Weight, int Tokens>
[[gnu::noinline]] void multiply_float_tile(FloatPanel<Weight> panel, const float* x, size_t x_stride, TileOut tile) {
  multiply_float_tokens(typename FirstInts<Tokens>::type{}, panel, x, x_stride, tile);
}

}  // namespace
}  // namespace octavo::avx2
