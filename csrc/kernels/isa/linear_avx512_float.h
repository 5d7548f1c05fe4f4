// Included inside `namespace octavo::<isa> { namespace {`: no include, no namespace here.
// F32, F16 and BF16 panels times float activations. One accumulator for even and one for odd k keep two fma chains a
// token in flight, whatever the tile width.

OCTAVO_INLINE __m512 load_row_of_k(const float* panel, int32_t k) {
  return _mm512_load_ps(panel + static_cast<size_t>(k) * kPanelRows);
}
OCTAVO_INLINE __m512 load_row_of_k(const uint16_t* panel, int32_t k) {
  return load_f16(panel + static_cast<size_t>(k) * kPanelRows);
}
OCTAVO_INLINE __m512 load_row_of_k(const Bf16* panel, int32_t k) {
  const auto* halves = reinterpret_cast<const __m256i*>(panel + static_cast<size_t>(k) * kPanelRows);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_load_si256(halves)), 16));
}

template <int... T>
OCTAVO_INLINE void add_column(Ints<T...>, __m512 weights, const float* const (&x)[sizeof...(T)], int32_t k,
                              __m512 (&acc)[sizeof...(T)]) {
  ((acc[T] = _mm512_fmadd_ps(weights, _mm512_set1_ps(x[T][k]), acc[T])), ...);
}

template <class Weight, int... T>
OCTAVO_INLINE void multiply_float_tokens(Ints<T...> tokens, FloatPanel<Weight> panel, const float* x, size_t x_stride,
                                         const TileOut& tile) {
  // Tokens past the tile's last are computed from the last one's values and not stored.
  const float* const rows[] = {x + (T < tile.tokens ? T : tile.tokens - 1) * x_stride...};
  __m512 even[sizeof...(T)] = {((void)T, _mm512_setzero_ps())...};
  __m512 odd[sizeof...(T)] = {((void)T, _mm512_setzero_ps())...};
  const size_t ahead = prefetch_distance<(sizeof...(T) > 2 ? kFarAhead : 0)>();
  int32_t k = 0;
  for (; k + 2 <= panel.cols; k += 2) {
    constexpr size_t kBytes = 2 * kPanelRows * sizeof(Weight);
    prefetch_weights<kBytes>(panel.weights + static_cast<size_t>(k) * kPanelRows, ahead);
    add_column(tokens, load_row_of_k(panel.weights, k), rows, k, even);
    add_column(tokens, load_row_of_k(panel.weights, k + 1), rows, k + 1, odd);
  }
  if (k < panel.cols) add_column(tokens, load_row_of_k(panel.weights, k), rows, k, even);
  (store_token(tile, T, _mm512_add_ps(even[T], odd[T])), ...);
}

template <class Weight, int Tokens>
[[gnu::noinline]] void multiply_float_tile(FloatPanel<Weight> panel, const float* x, size_t x_stride, TileOut tile) {
  multiply_float_tokens(typename FirstInts<Tokens>::type{}, panel, x, x_stride, tile);
}
