// Included inside `namespace octavo::<isa> { namespace {` after quantize_types.h, where AVX2 is there: no include, no
// namespace here. Eight vectors reduced at once, without the wait of a single one.

OCTAVO_INLINE bool any(Ints8 mask) { return _mm256_movemask_epi8(__builtin_bit_cast(__m256i, mask)) != 0; }

struct Max {
  OCTAVO_INLINE static __m256i of(__m256i a, __m256i b) { return _mm256_max_epu32(a, b); }
};
struct Sum {
  OCTAVO_INLINE static __m256i of(__m256i a, __m256i b) { return _mm256_add_epi32(a, b); }
};

// Reduces within 128-bit halves: out[0] has, per lane i, the lower half of x[i] reduced, out[1] the upper.
template <class Op>
OCTAVO_INLINE void reduce_halves(const __m256i (&x)[8], __m256i (&out)[2]) {
  __m256i fours[2];
#pragma GCC unroll 2
  for (int32_t i = 0; i < 2; ++i) {
    const __m256i a = Op::of(_mm256_unpacklo_epi32(x[4 * i], x[4 * i + 1]), _mm256_unpackhi_epi32(x[4 * i], x[4 * i + 1]));
    const __m256i b =
        Op::of(_mm256_unpacklo_epi32(x[4 * i + 2], x[4 * i + 3]), _mm256_unpackhi_epi32(x[4 * i + 2], x[4 * i + 3]));
    fours[i] = Op::of(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
  }
  out[0] = _mm256_permute2x128_si256(fours[0], fours[1], 0x20);
  out[1] = _mm256_permute2x128_si256(fours[0], fours[1], 0x31);
}
