// One panel times one tile of tokens. Every variant is the same code, so the same (row, token) gives the same bits in
// each. They are also those of the AVX-512 table: the same float operations in the same order.
//
// Tokens, groups and rows are expanded as packs: g++ 12 keeps an array of accumulators in memory when it meets it in a
// loop.
#pragma once

#include "kernels/avx2/linear_sources.h"
#include "kernels/linear_table.h"

namespace octavo::avx2 {
namespace {

template <class... Groups>
struct Chunks {};

// The k-groups of a block that share scale `Half`, in chunks whose products fit int16 together. Groups j and 4 + j
// share their nibble bytes.
template <class Source, int Half>
constexpr auto run_chunks() {
  if constexpr (Source::kGroupsPerSum == 8) {
    return Chunks<Ints<0, 4, 1, 5, 2, 6, 3, 7>>{};
  } else if constexpr (Source::kGroupsPerSum == 4 && Source::Codes::kHalves == 2) {
    return Chunks<Ints<4 * Half, 4 * Half + 1, 4 * Half + 2, 4 * Half + 3>>{};
  } else if constexpr (Source::kGroupsPerSum == 4) {
    return Chunks<Ints<0, 4, 1, 5>, Ints<2, 6, 3, 7>>{};
  } else if constexpr (Source::kGroupsPerSum == 2) {
    return Chunks<Ints<4 * Half, 4 * Half + 1>, Ints<4 * Half + 2, 4 * Half + 3>>{};
  } else {
    return Chunks<Ints<0>, Ints<1>, Ints<2>, Ints<3>, Ints<4>, Ints<5>, Ints<6>, Ints<7>>{};
  }
}

// Where the integer sums of a token start: minus the offset of the codes times the sum of its activations.
template <class Source, int Half>
OCTAVO_INLINE __m256i start_sum(const ActBlock& act, int32_t t) {
  using Codes = typename Source::Codes;
  if constexpr (Source::kIsSigned) return _mm256_setzero_si256();
  if constexpr (Codes::kOffset == 4) return _mm256_srai_epi32(_mm256_set1_epi32(act.start32[Half][t]), 3);
  if constexpr (Codes::kOffset == 32) return _mm256_set1_epi32(act.start32[Half][t]);
  if constexpr (Codes::kOffset == 8) return _mm256_set1_epi32(act.start8[t]);
  if constexpr (Codes::kOffset == 16) return _mm256_set1_epi32(act.start16[t]);
  return _mm256_setzero_si256();
}

// codes * the 4 activations at `q`: two int16 sums per row. Signed codes are |code| times the activation with the
// code's sign; |-128| is 128 as an unsigned byte.
template <class Source>
OCTAVO_INLINE __m256i dot(__m256i magnitudes, __m256i codes, const int8_t* q) {
  int32_t four;
  __builtin_memcpy(&four, q, 4);
  const __m256i values = _mm256_set1_epi32(four);
  return _mm256_maddubs_epi16(magnitudes, Source::kIsSigned ? _mm256_sign_epi8(values, codes) : values);
}

// Has the compiler finish one sum before it goes on: left alone it starts the products of all groups at once, and runs
// out of registers.
OCTAVO_INLINE __m256i finish(__m256i value) {
  asm volatile("" : "+x"(value));
  return value;
}

// Token T is token lane + T of the activations, here and below.
template <class Source, int Row, int Group, int... T>
OCTAVO_INLINE void add_group(Ints<T...>, const typename Source::Record& record, int32_t block, const ActBlock& act,
                             int32_t lane, __m256i (&pairs)[sizeof...(T)]) {
  const __m256i codes = Source::template code<Group, Row>(record, block);
  const __m256i magnitudes = Source::kIsSigned ? _mm256_abs_epi8(codes) : codes;
  ((pairs[T] = finish(_mm256_add_epi16(pairs[T], dot<Source>(magnitudes, codes, &act.q[lane + T][4 * Group])))), ...);
}

template <class Source, int Row, int... G, int... T>
OCTAVO_INLINE void add_chunk(Ints<G...>, Ints<T...> tokens, const typename Source::Record& record, int32_t block,
                             const ActBlock& act, int32_t lane, __m256i (&sums)[sizeof...(T)]) {
  __m256i pairs[sizeof...(T)] = {((void)T, _mm256_setzero_si256())...};
  (add_group<Source, Row, G>(tokens, record, block, act, lane, pairs), ...);
  ((sums[T] = finish(_mm256_add_epi32(sums[T], _mm256_madd_epi16(pairs[T], _mm256_set1_epi16(1))))), ...);
}

template <class Source, int Row, class... Groups, int... T>
OCTAVO_INLINE void add_chunks(Chunks<Groups...>, Ints<T...> tokens, const typename Source::Record& record,
                              int32_t block, const ActBlock& act, int32_t lane, __m256i (&sums)[sizeof...(T)]) {
  (add_chunk<Source, Row>(Groups{}, tokens, record, block, act, lane, sums), ...);
}

// Adds the minima of a half block: with the sum of its activations, which start32 holds times -32.
template <class Source, int Half, int Row, int... T>
OCTAVO_INLINE void add_half_min(Ints<T...>, const typename Source::Record& record, int32_t block, const ActBlock& act,
                                int32_t lane, __m256 (&acc)[sizeof...(T)]) {
  const __m256 m = _mm256_mul_ps(Source::template m<Half, Row>(record, block), _mm256_set1_ps(-0x1p-5f));
  ((acc[T] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_set1_epi32(act.start32[Half][lane + T])),
                             _mm256_mul_ps(m, _mm256_set1_ps(act.d[lane + T])), acc[T])),
   ...);
}

template <class Source, int Half, int Row, int... T>
OCTAVO_INLINE void add_run(Ints<T...> tokens, const typename Source::Record& record, int32_t block,
                           const ActBlock& act, int32_t lane, __m256 (&acc)[sizeof...(T)]) {
  __m256i sums[sizeof...(T)] = {start_sum<Source, Half>(act, lane + T)...};
  add_chunks<Source, Row>(run_chunks<Source, Half>(), tokens, record, block, act, lane, sums);
  const __m256 d = Source::template d<Half, Row>(record, block);
  ((acc[T] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[T]), _mm256_mul_ps(d, _mm256_set1_ps(act.d[lane + T])), acc[T])),
   ...);
  if constexpr (Source::Codes::kHasMin && Source::Codes::kHalves == 2) {
    add_half_min<Source, Half, Row>(tokens, record, block, act, lane, acc);
  }
}

template <class Source, int Row, int... T>
OCTAVO_INLINE void add_codes(Ints<T...> tokens, const typename Source::Record& record, int32_t block,
                             const ActBlock& act, int32_t lane, __m256 (&acc)[sizeof...(T)]) {
  add_run<Source, 0, Row>(tokens, record, block, act, lane, acc);
  if constexpr (Source::Codes::kHalves == 2) add_run<Source, 1, Row>(tokens, record, block, act, lane, acc);
}

template <class Source, int Row, int... T>
OCTAVO_INLINE void add_block(Ints<T...> tokens, const typename Source::Record& record, int32_t block,
                             const ActBlock& act, int32_t lane, __m256 (&acc)[sizeof...(T)]) {
  add_codes<Source, Row>(tokens, record, block, act, lane, acc);
  if constexpr (Source::Codes::kHasMin && Source::Codes::kHalves == 1) {
    const __m256 m = Source::template m<0, Row>(record, block);
    ((acc[T] = _mm256_fmadd_ps(m, _mm256_set1_ps(act.d_sum[lane + T]), acc[T])), ...);
  }
}

template <class Source, int Row>
OCTAVO_INLINE __m256 add_residual(const TileIn<Source>& in, const ActResidual& residual, int32_t lane, __m256 value) {
  const int32_t b = residual.block[lane];
  __m256 acc[] = {value};
  add_codes<Source, Row>(Ints<0>{}, in.records[b >> 1], b & 1, residual.terms, lane, acc);
  return acc[0];
}

template <int Row>
OCTAVO_INLINE void store_token(const TileOut& tile, int32_t t, __m256 acc) {
  if (t >= tile.tokens) return;
  float* out = tile.out + t * tile.stride + Row;
  if (tile.rows >= Row + 8) {
    _mm256_storeu_ps(out, acc);
  } else {
    const __m256i lanes = _mm256_setr_epi32(Row, Row + 1, Row + 2, Row + 3, Row + 4, Row + 5, Row + 6, Row + 7);
    _mm256_maskstore_ps(out, _mm256_cmpgt_epi32(_mm256_set1_epi32(tile.rows), lanes), acc);
  }
}

template <int Row, int... P, int... T>
OCTAVO_INLINE void store_pairs(Ints<P...>, Ints<T...>, const TileOut& tile, const __m256 (&acc)[sizeof...(T)]) {
  (store_token<Row>(tile, P, _mm256_add_ps(acc[2 * P], acc[2 * P + 1])), ...);
}

// One accumulator per token, of rows Row .. Row + 7.
template <class Source, int Row, int... T>
OCTAVO_INLINE void finish_tokens(Ints<T...> tokens, const TileIn<Source>& in, const TileOut& tile,
                                 __m256 (&acc)[sizeof...(T)]) {
  if constexpr (sizeof...(T) > 1) {
    if (tile.terms == 2) return store_pairs<Row>(typename FirstInts<sizeof...(T) / 2>::type{}, tokens, tile, acc);
  }
#pragma GCC unroll 1
  for (int32_t i = 0; i < kResidualBlocks; ++i) {
    ((acc[T] = add_residual<Source, Row>(in, in.residual(i), in.lane + T, acc[T])), ...);
  }
  (store_token<Row>(tile, T, acc[T]), ...);
}

template <class Source, int Row, int... T>
OCTAVO_INLINE void multiply_eight_rows(Ints<T...> tokens, const TileIn<Source>& in, const TileOut& tile) {
  __m256 acc[sizeof...(T)] = {((void)T, _mm256_setzero_ps())...};
  for (int32_t i = 0; i < in.num_records; ++i) {
    if constexpr (Row == 0) prefetch_weights<sizeof(in.records[i])>(&in.records[i]);
    add_block<Source, Row>(tokens, in.records[i], 0, in.acts[2 * i], in.lane, acc);
    add_block<Source, Row>(tokens, in.records[i], 1, in.acts[2 * i + 1], in.lane, acc);
  }
  finish_tokens<Source, Row>(tokens, in, tile, acc);
}

// All rows of few tokens at once, so that the panel is one stream.
template <class Source, int... T>
OCTAVO_INLINE void multiply_all_rows(Ints<T...> tokens, const TileIn<Source>& in, const TileOut& tile) {
  __m256 upper[sizeof...(T)] = {((void)T, _mm256_setzero_ps())...};
  __m256 lower[sizeof...(T)] = {((void)T, _mm256_setzero_ps())...};
  for (int32_t i = 0; i < in.num_records; ++i) {
    prefetch_weights<sizeof(in.records[i])>(&in.records[i]);
    add_block<Source, 0>(tokens, in.records[i], 0, in.acts[2 * i], in.lane, upper);
    add_block<Source, 8>(tokens, in.records[i], 0, in.acts[2 * i], in.lane, lower);
    add_block<Source, 0>(tokens, in.records[i], 1, in.acts[2 * i + 1], in.lane, upper);
    add_block<Source, 8>(tokens, in.records[i], 1, in.acts[2 * i + 1], in.lane, lower);
  }
  finish_tokens<Source, 0>(tokens, in, tile, upper);
  finish_tokens<Source, 8>(tokens, in, tile, lower);
}

template <class Source, int Tokens>
[[gnu::noinline]] void multiply_tile(const typename Source::Record* records, int32_t num_records, const ActBlock* acts,
                                     int32_t lane, TileOut tile) {
  const TileIn<Source> in = {records, num_records, acts, lane};
  const typename FirstInts<Tokens>::type tokens;
  if constexpr (Tokens <= 2) {
    multiply_all_rows(tokens, in, tile);
  } else {
    multiply_eight_rows<Source, 0>(tokens, in, tile);
    multiply_eight_rows<Source, 8>(tokens, in, tile);
  }
}

}  // namespace
}  // namespace octavo::avx2
