// Included inside `namespace octavo::avx512 { namespace {`: no include, no namespace here.
// Integer products for isa/linear_avx512_tile.h without VNNI: vpmaddubsw, then vpmaddwd by ones. The first adds two
// products of an unsigned and a signed byte in 16 bits, and saturates; so it is only given what cannot.

// Two products of unsigned 8-bit codes would not fit 16 bits. Signed they do: 2 * 128 * 127 = 32,512.
template <class Codes>
constexpr bool kIsSigned = 2 * Codes::kMaxCode * 127 > 32767;
template <class Codes>
constexpr int32_t kMaxMagnitude = kIsSigned<Codes> ? 128 : Codes::kMaxCode;

constexpr bool kSharesActivations = false;

// How many k-groups add up in 16 bits: 8 * 2 * 15 * 127 = 30,480, 4 * 2 * 31 * 127 = 31,496, 2 * 2 * 63 * 127 = 32,004.
template <class Codes>
constexpr int kGroupsPerSum = 8 * 2 * kMaxMagnitude<Codes> * 127 <= 32767   ? 8
                              : 4 * 2 * kMaxMagnitude<Codes> * 127 <= 32767 ? 4
                              : 2 * 2 * kMaxMagnitude<Codes> * 127 <= 32767 ? 2
                                                                            : 1;

// codes * the 4 activations at `q`: two sums of 16 bits per row. Signed codes are |code| times the activation with the
// code's sign; `negative` are those below 0.
template <class Codes>
OCTAVO_INLINE __m512i dot(__m512i magnitudes, __mmask64 negative, const int8_t* q) {
  int32_t four;
  __builtin_memcpy(&four, q, 4);
  __m512i values = _mm512_set1_epi32(four);
  if constexpr (kIsSigned<Codes>) values = _mm512_mask_sub_epi8(values, negative, _mm512_setzero_si512(), values);
  return _mm512_maddubs_epi16(magnitudes, values);
}

// Has the compiler finish one sum before it goes on: left alone it starts the products of all groups at once, and runs
// out of registers.
OCTAVO_INLINE __m512i finish(__m512i value) {
  asm volatile("" : "+v"(value));
  return value;
}

// "memory": the tokens' scales would else stay in registers for the other half of the block.
OCTAVO_INLINE __m512 settle(__m512 acc) {
  asm volatile("" : "+v"(acc) : : "memory");
  return acc;
}

template <class Source, int Group, int... T>
OCTAVO_INLINE void add_group(Ints<T...>, const typename Source::Record& record, int32_t block, const int8_t (*q)[32],
                             __m512i (&pairs)[sizeof...(T)]) {
  using Codes = typename Source::Codes;
  __m512i codes = Source::template code<Group>(record, block);
  __mmask64 negative = 0;
  if constexpr (kIsSigned<Codes>) {
    static_assert(Codes::kOffset == 128);
    codes = _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
    negative = _mm512_movepi8_mask(codes);
    codes = _mm512_abs_epi8(codes);  // of -128: 128 as an unsigned byte
  }
  ((pairs[T] = finish(_mm512_add_epi16(pairs[T], dot<Codes>(codes, negative, &q[T][4 * Group])))), ...);
}

template <int... G>
constexpr int nth(Ints<G...>, int n) {
  constexpr int kAll[] = {G...};
  return kAll[n];
}

// The groups at First + I of a list, whose products fit 16 bits together.
template <class Source, class List, int First, int... I, int... T>
OCTAVO_INLINE void add_chunk(Ints<I...>, Ints<T...> tokens, const typename Source::Record& record, int32_t block,
                             const int8_t (*q)[32], __m512i (&sums)[sizeof...(T)]) {
  __m512i pairs[sizeof...(T)] = {((void)T, _mm512_setzero_si512())...};
  (add_group<Source, nth(List{}, First + I)>(tokens, record, block, q, pairs), ...);
  ((sums[T] = finish(_mm512_add_epi32(sums[T], _mm512_madd_epi16(pairs[T], _mm512_set1_epi16(1))))), ...);
}

template <class Source, class List, int Size, int... C, int... T>
OCTAVO_INLINE void add_chunks(Ints<C...>, Ints<T...> tokens, const typename Source::Record& record, int32_t block,
                              const int8_t (*q)[32], __m512i (&sums)[sizeof...(T)]) {
  (add_chunk<Source, List, C * Size>(typename FirstInts<Size>::type{}, tokens, record, block, q, sums), ...);
}

template <class Source, int... G, int... T>
OCTAVO_INLINE void add_products(Ints<G...>, Ints<T...> tokens, const typename Source::Record& record, int32_t block,
                                const int8_t (*q)[32], __m512i (&sums)[sizeof...(T)]) {
  constexpr int kMost = kGroupsPerSum<typename Source::Codes>;
  constexpr int kSize = kMost < static_cast<int>(sizeof...(G)) ? kMost : static_cast<int>(sizeof...(G));
  using ChunkIndices = typename FirstInts<static_cast<int>(sizeof...(G)) / kSize>::type;
  add_chunks<Source, Ints<G...>, kSize>(ChunkIndices{}, tokens, record, block, q, sums);
}

template <class Source, int... G>
OCTAVO_INLINE __m512i add_products_of_one(Ints<G...> groups, const typename Source::Record& record, int32_t block,
                                          const int8_t (&q)[32], __m512i sum) {
  __m512i sums[] = {sum};
  add_products<Source>(groups, Ints<0>{}, record, block, &q, sums);
  return sums[0];
}
