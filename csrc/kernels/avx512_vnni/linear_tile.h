// One panel times one tile of tokens. Every variant (tile width, packed or unpacked source) is the same code, so the
// same (row, token) gives the same bits in each.
//
// g++ 12 keeps an array of accumulators in memory when it meets it in a loop. Tokens and groups are therefore expanded
// as packs: every index is a constant before the optimiser first looks. tests/check_spills.sh guards the result.
#pragma once

#include "kernels/avx512_vnni/linear_sources.h"
#include "kernels/linear_table.h"

namespace octavo::avx512_vnni {
namespace {

template <int... I>
struct Ints {};

template <int N>
struct FirstInts;
template <>
struct FirstInts<1> {
  using type = Ints<0>;
};
template <>
struct FirstInts<2> {
  using type = Ints<0, 1>;
};
template <>
struct FirstInts<4> {
  using type = Ints<0, 1, 2, 3>;
};
template <>
struct FirstInts<8> {
  using type = Ints<0, 1, 2, 3, 4, 5, 6, 7>;
};

// Where the integer sums of a token start: minus the offset of the codes times the sum of its activations.
template <class Codes, int Half>
OCTAVO_INLINE __m512i start_sum(const ActBlock& act, int32_t t) {
  if constexpr (Codes::kHalves == 2) return _mm512_set1_epi32(act.start32[Half][t]);
  if constexpr (Codes::kOffset == 8) return _mm512_set1_epi32(act.start8[t]);
  if constexpr (Codes::kOffset == 16) return _mm512_set1_epi32(act.start16[t]);
  if constexpr (Codes::kOffset == 128) return _mm512_set1_epi32(act.start128[t]);
  return _mm512_setzero_si512();
}

// sums += codes * the 4 activations at `q`, in each of the 16 rows.
OCTAVO_INLINE __m512i dot(__m512i sums, __m512i codes, const int8_t* q) {
  int32_t four;
  __builtin_memcpy(&four, q, 4);
  return _mm512_dpbusd_epi32(sums, codes, _mm512_set1_epi32(four));
}

template <int Group, int... T>
OCTAVO_INLINE void add_group(Ints<T...>, __m512i codes, const ActBlock& act, __m512i (&sums)[sizeof...(T)]) {
  ((sums[T] = dot(sums[T], codes, &act.q[T][4 * Group])), ...);
}

// The block's k-groups `G`, which share one scale.
template <class Source, int Half, int... G, int... T>
OCTAVO_INLINE void add_run(Ints<G...>, Ints<T...> tokens, const typename Source::Record& record, int32_t block,
                           const ActBlock& act, __m512 (&acc)[sizeof...(T)]) {
  __m512i sums[sizeof...(T)] = {start_sum<typename Source::Codes, Half>(act, T)...};
  (add_group<G>(tokens, Source::template code<G>(record, block), act, sums), ...);
  const __m512 d = Source::template d<Half>(record, block);
  ((acc[T] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[T]), _mm512_mul_ps(d, _mm512_set1_ps(act.d[T])), acc[T])), ...);
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
  if constexpr (Source::Codes::kHasMin) {
    const __m512 m = Source::m(record, block);
    ((acc[T] = _mm512_fmadd_ps(m, _mm512_set1_ps(act.d_sum[T]), acc[T])), ...);
  }
}

// Adds one token's run of a residual block. Two chains of sums, as no other token fills the wait for a sum.
template <class Source, int Half, int... G>
OCTAVO_INLINE __m512 add_token_run(Ints<G...>, int32_t t, const typename Source::Record& record, int32_t block,
                                   const ActBlock& act, __m512 acc) {
  __m512i even = start_sum<typename Source::Codes, Half>(act, t);
  __m512i odd = _mm512_setzero_si512();
  (((G % 2 ? odd : even) = dot(G % 2 ? odd : even, Source::template code<G>(record, block), &act.q[t][4 * G])), ...);
  const __m512 scale = _mm512_mul_ps(Source::template d<Half>(record, block), _mm512_set1_ps(act.d[t]));
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(even, odd)), scale, acc);
}

// Has the compiler finish one value before it goes on: left alone it starts all tokens at once, sinks half of the work
// below store_token's test, and runs out of registers.
OCTAVO_INLINE __m512 finish(__m512 value) {
  asm volatile("" : "+v"(value));
  return value;
}

// A token's residual belongs to a block of its own: neighbours share it too seldom (1 tile in 4 or fewer) to decode its
// codes once for all.
template <class Source>
OCTAVO_INLINE __m512 add_token_residual(int32_t t, const typename Source::Record* records, const ActResidual& residual,
                                        __m512 acc) {
  const auto& record = records[residual.block[t] >> 1];
  const int32_t block = residual.block[t] & 1;
  if constexpr (Source::Codes::kHalves == 2) {
    acc = add_token_run<Source, 0>(Ints<0, 1, 2, 3>{}, t, record, block, residual.terms, acc);
    return add_token_run<Source, 1>(Ints<4, 5, 6, 7>{}, t, record, block, residual.terms, acc);
  } else {
    return add_token_run<Source, 0>(Ints<0, 4, 1, 5, 2, 6, 3, 7>{}, t, record, block, residual.terms, acc);
  }
}

// Where a tile's results go: `tokens` rows of 16 floats, of which `rows` are written.
struct TileOut {
  float* out;
  size_t stride;
  int32_t tokens;
  __mmask16 rows;
};

OCTAVO_INLINE void store_token(const TileOut& tile, int32_t t, __m512 acc) {
  if (t < tile.tokens) _mm512_mask_storeu_ps(tile.out + t * tile.stride, tile.rows, acc);
}

// Panels are one stream in memory order: the bytes this far ahead are needed soon, in this panel or the next. With
// one or two tokens the hardware prefetcher follows the stream faster than we do. With more, activations falling out of
// the L1 cache confuse it: 4 tokens ran at 0.6 of the speed without this (Zen 4).
template <int Tokens, size_t Bytes>
OCTAVO_INLINE void prefetch_weights(const void* weights) {
  constexpr size_t kDistance = 8192;
  if constexpr (Tokens <= 2) return;
  const char* ahead = static_cast<const char*>(weights) + kDistance;
#pragma GCC unroll 32
  for (size_t line = 0; line < Bytes; line += 64) _mm_prefetch(ahead + line, _MM_HINT_T1);
}

template <class Source, int... T>
OCTAVO_INLINE void multiply_tokens(Ints<T...> tokens, const std::byte* panel, int32_t num_records, const ActBlock* acts,
                                   const TileOut& tile) {
  const auto* records = reinterpret_cast<const typename Source::Record*>(panel);
  __m512 acc[sizeof...(T)] = {((void)T, _mm512_setzero_ps())...};
  for (int32_t i = 0; i < num_records; ++i) {
    if constexpr (Source::kIsStreamed) prefetch_weights<sizeof...(T), sizeof(records[0])>(&records[i]);
    add_block<Source>(tokens, records[i], 0, acts[2 * i], acc);
    add_block<Source>(tokens, records[i], 1, acts[2 * i + 1], acc);
  }
  const auto* residuals = reinterpret_cast<const ActResidual*>(acts + 2 * num_records);
#pragma GCC unroll 1
  for (int32_t i = 0; i < kResidualBlocks; ++i) {
    ((acc[T] = finish(add_token_residual<Source>(T, records, residuals[i], acc[T]))), ...);
  }
  (store_token(tile, T, acc[T]), ...);
}

template <class Source, int Tokens>
[[gnu::noinline]] void multiply_tile(const std::byte* panel, int32_t num_records, const ActBlock* acts, TileOut tile) {
  multiply_tokens<Source>(typename FirstInts<Tokens>::type{}, panel, num_records, acts, tile);
}

// Unpacks a panel for SourceUnpacked.
template <class Source, int... G>
OCTAVO_INLINE void unpack_block(Ints<G...>, const typename Source::Record& record, int32_t block, UnpackedRecord& out) {
  (_mm512_store_si512(out.codes[block][G], Source::template code<G>(record, block)), ...);
  _mm512_store_ps(out.d[block][0], Source::template d<0>(record, block));
  if constexpr (Source::Codes::kHalves == 2) {
    _mm512_store_ps(out.d[block][1], Source::template d<1>(record, block));
  }
  if constexpr (Source::Codes::kHasMin) _mm512_store_ps(out.d[block][1], Source::m(record, block));
}

template <class Source>
[[gnu::noinline]] void unpack_panel(const std::byte* panel, int32_t num_records, UnpackedRecord* out) {
  const auto* records = reinterpret_cast<const typename Source::Record*>(panel);
  for (int32_t i = 0; i < num_records; ++i) {
    unpack_block<Source>(FirstInts<8>::type{}, records[i], 0, out[i]);
    unpack_block<Source>(FirstInts<8>::type{}, records[i], 1, out[i]);
  }
}

}  // namespace
}  // namespace octavo::avx512_vnni
