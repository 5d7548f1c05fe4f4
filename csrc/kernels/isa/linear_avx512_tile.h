// Included inside `namespace octavo::<isa> { namespace {`: no include, no namespace here.
// One panel times one tile of tokens. Every variant (tile width, format) is the same code, so the
// same (row, token) gives the same bits in each.
//
// g++ 12 keeps an array of accumulators in memory when it meets it in a loop. Tokens and groups are therefore expanded
// as packs: every index is a constant before the optimiser first looks. tests/check_spills.sh guards the result.
//
// How integers are multiplied is the table's linear_dot.h, included before:
//
//   kIsSigned<Codes>   whether the codes are taken as signed, less their offset
//   add_products<Source>(Ints<groups>, tokens, record, block, q, sums)   sums[T] += codes * q[T], per row
//   add_products_of_one<Source>(Ints<groups>, record, block, q, sum)     the same for one token: the new sum
//   settle(acc)        the accumulator itself, where the compiler may be kept from starting the next run

// Where the integer sums of a token start: minus the offset of the codes times the sum of its activations.
template <class Codes, int Half>
OCTAVO_INLINE __m512i start_sum(const ActBlock& act, int32_t t) {
  if constexpr (kIsSigned<Codes>) return _mm512_setzero_si512();
  if constexpr (Codes::kOffset == 4) return _mm512_srai_epi32(_mm512_set1_epi32(act.start32[Half][t]), 3);
  if constexpr (Codes::kOffset == 32) return _mm512_set1_epi32(act.start32[Half][t]);
  if constexpr (Codes::kOffset == 8) return _mm512_set1_epi32(act.start8[t]);
  if constexpr (Codes::kOffset == 16) return _mm512_set1_epi32(act.start16[t]);
  if constexpr (Codes::kOffset == 128) return _mm512_set1_epi32(act.start128[t]);
  return _mm512_setzero_si512();
}

// Minima per half block go with the sum of its activations: their own run, with m as scale.
template <class Codes>
constexpr bool kHasHalfMin = Codes::kHasMin && Codes::kHalves == 2;

// sum(q) of a half block, times -32.
template <int Half>
OCTAVO_INLINE __m512 half_sum(const ActBlock& act, int32_t t) {
  return _mm512_cvtepi32_ps(_mm512_set1_epi32(act.start32[Half][t]));
}

// What half_sum is multiplied by.
template <class Source, int Half, bool IsLine>
OCTAVO_INLINE __m512 half_min(const typename Source::Record& record, int32_t block) {
  return _mm512_mul_ps(Source::template m<Half, IsLine>(record, block), _mm512_set1_ps(-0x1p-5f));
}

// acc += the integer sums of a run times its scales, and the part of the minima that go with it.
template <class Source, int Half, class Record, int... T>
OCTAVO_INLINE void add_scaled(Ints<T...>, const Record& record, int32_t block, const ActBlock& act,
                              const __m512i (&sums)[sizeof...(T)], __m512 (&acc)[sizeof...(T)]) {
  using Codes = typename Source::Codes;
  constexpr bool kIsLine = sizeof...(T) == 1;
  const __m512 d = Source::template d<Half, kIsLine>(record, block);
  ((acc[T] = settle(
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[T]), _mm512_mul_ps(d, _mm512_set1_ps(act.d[T])), acc[T]))),
   ...);
  if constexpr (kHasHalfMin<Codes>) {
    const __m512 m = half_min<Source, Half, kIsLine>(record, block);
    ((acc[T] = settle(_mm512_fmadd_ps(half_sum<Half>(act, T), _mm512_mul_ps(m, _mm512_set1_ps(act.d[T])), acc[T]))),
     ...);
  } else if constexpr (Codes::kHasMin) {
    const __m512 m = Source::template m<0, kIsLine>(record, block);
    ((acc[T] = _mm512_fmadd_ps(m, _mm512_set1_ps(act.d_sum[T]), acc[T])), ...);
  }
}

// The block's k-groups `G`, which share one scale.
template <class Source, int Half, int... G, int... T>
OCTAVO_INLINE void add_run(Ints<G...> groups, Ints<T...> tokens, const typename Source::Record& record, int32_t block,
                           const ActBlock& act, __m512 (&acc)[sizeof...(T)]) {
  __m512i sums[sizeof...(T)] = {start_sum<typename Source::Codes, Half>(act, T)...};
  add_products<Source>(groups, tokens, record, block, act.q, sums);
  add_scaled<Source, Half>(tokens, record, block, act, sums, acc);
}

template <class Source, int... T>
OCTAVO_INLINE void add_block(Ints<T...> tokens, const typename Source::Record& record, int32_t block,
                             const ActBlock& act, __m512 (&acc)[sizeof...(T)]) {
  if constexpr (Source::Codes::kHalves == 2) {
    add_run<Source, 0>(Ints<0, 1, 2, 3>{}, tokens, record, block, act, acc);
    add_run<Source, 1>(Ints<4, 5, 6, 7>{}, tokens, record, block, act, acc);
  } else {
    // Groups j and 4 + j share their nibble bytes.
    add_run<Source, 0>(Ints<0, 4, 1, 5, 2, 6, 3, 7>{}, tokens, record, block, act, acc);
  }
}

template <class Source, int Half, int... G>
OCTAVO_INLINE __m512 add_residual_run(Ints<G...>, const typename Source::Record& record, int32_t block,
                                      const ActBlock& act, int32_t t, __m512 acc) {
  const __m512i start = start_sum<typename Source::Codes, Half>(act, t);
  const __m512i sum = add_products_of_one<Source>(Ints<G...>{}, record, block, act.q[t], start);
  const __m512 d = _mm512_mul_ps(Source::template d<Half, false>(record, block), _mm512_set1_ps(act.d[t]));
  acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), d, acc);
  if constexpr (kHasHalfMin<typename Source::Codes>) {
    const __m512 m = _mm512_mul_ps(half_min<Source, Half, false>(record, block), _mm512_set1_ps(act.d[t]));
    acc = _mm512_fmadd_ps(half_sum<Half>(act, t), m, acc);
  }
  return acc;
}

// Per token: all tokens of a tile have their residual in the same block too seldom (4 % of the tiles with 576 columns
// of smollm2, 25 to 50 % with 640 of gemma3) to decode its codes once for all.
template <class Source>
OCTAVO_INLINE __m512 add_residual(const typename Source::Record* records, const ActResidual& residual, int32_t t,
                                  __m512 acc) {
  const auto& record = records[residual.block[t] >> 1];
  const int32_t block = residual.block[t] & 1;
  if constexpr (Source::Codes::kHalves == 2) {
    acc = add_residual_run<Source, 0>(Ints<0, 1, 2, 3>{}, record, block, residual.terms, t, acc);
    return add_residual_run<Source, 1>(Ints<4, 5, 6, 7>{}, record, block, residual.terms, t, acc);
  } else {
    return add_residual_run<Source, 0>(Ints<0, 4, 1, 5, 2, 6, 3, 7>{}, record, block, residual.terms, t, acc);
  }
}

// Has the compiler finish one value before it goes on: left alone it starts all tokens at once, sinks half of the work
// below store_token's test, and runs out of registers.
OCTAVO_INLINE __m512 finish(__m512 value) {
  asm volatile("" : "+v"(value));
  return value;
}

OCTAVO_INLINE void store_token(const TileOut& tile, int32_t t, __m512 acc) {
  if (t < tile.tokens) _mm512_mask_storeu_ps(tile.out + t * tile.stride, tile.rows, acc);
}

template <int... P, int... T>
OCTAVO_INLINE void store_pairs(Ints<P...>, Ints<T...>, const TileOut& tile, const __m512 (&acc)[sizeof...(T)]) {
  (store_token(tile, P, _mm512_add_ps(acc[2 * P], acc[2 * P + 1])), ...);
}

template <class Source, int... T>
OCTAVO_INLINE void multiply_tokens(Ints<T...> tokens, const TileIn<Source>& in, const TileOut& tile) {
  __m512 acc[sizeof...(T)] = {((void)T, _mm512_setzero_ps())...};
  for (int32_t i = 0; i < in.num_records; ++i) {
    const auto& record = in.records[i];
    prefetch_weights<sizeof(record)>(&record, prefetch_distance<Source::template kPrefetchDistance<sizeof...(T)>>());
    add_block<Source>(tokens, record, 0, in.acts[2 * i], acc);
    add_block<Source>(tokens, record, 1, in.acts[2 * i + 1], acc);
  }
  if constexpr (sizeof...(T) > 1) {
    if (tile.terms == 2) return store_pairs(typename FirstInts<sizeof...(T) / 2>::type{}, tokens, tile, acc);
  }
#pragma GCC unroll 1
  for (int32_t i = 0; i < kResidualBlocks; ++i) {
    ((acc[T] = finish(add_residual<Source>(in.records, in.residual(i), T, acc[T]))), ...);
  }
  (store_token(tile, T, acc[T]), ...);
}

template <class Source, int Tokens>
[[gnu::noinline]] void multiply_tile(const typename Source::Record* records, int32_t num_records, const ActBlock* acts,
                                     int32_t lane, TileOut tile) {
  const TileIn<Source> in = {records, num_records, acts, lane};
  multiply_tokens(typename FirstInts<Tokens>::type{}, in, tile);
}

constexpr int kWidestTile = 8;
constexpr int kNarrowestTile = 1;

OCTAVO_INLINE Rows first_rows(int32_t count) { return static_cast<Rows>((1 << count) - 1); }
