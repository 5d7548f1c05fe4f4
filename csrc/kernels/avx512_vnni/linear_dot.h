// Included inside `namespace octavo::avx512_vnni { namespace {`: no include, no namespace here.
// Integer products for isa/linear_avx512_tile.h: one vpdpbusd per 64 of them.

template <class Codes>
constexpr bool kIsSigned = false;

OCTAVO_INLINE __m512 settle(__m512 acc) { return acc; }

OCTAVO_INLINE __m512i dot(__m512i sums, __m512i codes, const int8_t* q) {
  int32_t four;
  __builtin_memcpy(&four, q, 4);
  return _mm512_dpbusd_epi32(sums, codes, _mm512_set1_epi32(four));
}

template <int Group, int... T>
OCTAVO_INLINE void add_group(Ints<T...>, __m512i codes, const int8_t (*q)[32], __m512i (&sums)[sizeof...(T)]) {
  ((sums[T] = dot(sums[T], codes, &q[T][4 * Group])), ...);
}

template <class Source, int... G, int... T>
OCTAVO_INLINE void add_products(Ints<G...>, Ints<T...> tokens, const typename Source::Record& record, int32_t block,
                                const int8_t (*q)[32], __m512i (&sums)[sizeof...(T)]) {
  (add_group<G>(tokens, Source::template code<G>(record, block), q, sums), ...);
}

// Two chains, as no other token fills the wait for a sum.
template <class Source, int... G>
OCTAVO_INLINE __m512i add_products_of_one(Ints<G...>, const typename Source::Record& record, int32_t block,
                                          const int8_t (&q)[32], __m512i sum) {
  __m512i even = sum;
  __m512i odd = _mm512_setzero_si512();
  (((G % 2 ? odd : even) = dot(G % 2 ? odd : even, Source::template code<G>(record, block), &q[4 * G])), ...);
  return _mm512_add_epi32(even, odd);
}
