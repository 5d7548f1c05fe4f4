// Included inside `namespace octavo::avx512_vnni { namespace {`: no include, no namespace here.
// Integer products for isa/linear_avx512_tile.h: one vpdpbusd per 64 of them.

template <class Codes>
constexpr bool kIsSigned = false;

constexpr bool kSharesActivations = true;

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

OCTAVO_INLINE void dot_two(__m512i& sums_a, __m512i& sums_b, __m512i codes_a, __m512i codes_b, const int8_t* q) {
  int32_t four;
  __builtin_memcpy(&four, q, 4);
  const __m512i values = in_register(_mm512_set1_epi32(four));
  sums_a = _mm512_dpbusd_epi32(sums_a, codes_a, values);
  sums_b = _mm512_dpbusd_epi32(sums_b, codes_b, values);
}

template <int Group, int... T>
OCTAVO_INLINE void add_group_of_two(Ints<T...>, __m512i codes_a, __m512i codes_b, const int8_t (*q)[32],
                                    __m512i (&sums_a)[sizeof...(T)], __m512i (&sums_b)[sizeof...(T)]) {
  (dot_two(sums_a[T], sums_b[T], codes_a, codes_b, &q[T][4 * Group]), ...);
}

template <class Source, int... G, int... T>
OCTAVO_INLINE void add_products_of_two(Ints<G...>, Ints<T...> tokens, const typename Source::Record& a,
                                       const typename Source::Record& b, int32_t block, const int8_t (*q)[32],
                                       __m512i (&sums_a)[sizeof...(T)], __m512i (&sums_b)[sizeof...(T)]) {
  (add_group_of_two<G>(tokens, Source::template code<G>(a, block), Source::template code<G>(b, block), q, sums_a, sums_b),
   ...);
}
