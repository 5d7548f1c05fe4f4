// Included inside `namespace octavo::<isa> { namespace {`: no include, no namespace here.
// The SIMD vocabulary of the step kernels on AVX-512: 16 float lanes. Same names as vec_scalar.h.

using Vec = __m512;
using Mask = uint32_t;  // bit i = lane i
constexpr int kVecRegisters = 32;  // how many Vec they hold

inline Vec zero() { return _mm512_setzero_ps(); }
inline Vec splat(float x) { return _mm512_set1_ps(x); }
inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
// The first n lanes, 0 <= n <= 16; lanes past them read as 0 and are not touched in memory.
inline Vec load_part(const float* p, int32_t n) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
}
inline void store_part(float* p, Vec v, int32_t n) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), v);
}

inline Vec load_kv(const float* p) { return load(p); }
inline Vec load_kv_part(const float* p, int32_t n) { return load_part(p, n); }
inline Vec load_kv(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Vec load_kv_part(const uint16_t* p, int32_t n) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << n) - 1), p));
}
inline void store_kv_part(float* p, Vec v, int32_t n) { store_part(p, v, n); }
inline void store_kv_part(uint16_t* p, Vec v, int32_t n) {
  const __m256i halves = _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm256_mask_storeu_epi16(p, static_cast<__mmask16>((1u << n) - 1), halves);
}

// Codes of 16 channels or tokens; what a code stands for is in step_kv.h.
inline Vec load_bf16(const Bf16* p) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}
inline Vec widen_signed(__m128i bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)); }
inline Vec load_int8(const uint8_t* p) { return widen_signed(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
// The half precision numbers whose sign is a code's first bit and whose other bits begin with the code's rest, after
// kSkip zeros.
template <int kSkip>
inline Vec load_float8(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m256i words = _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8);
  if constexpr (kSkip == 0) return _mm512_cvtph_ps(words);
  const __m256i top = _mm256_set1_epi16(static_cast<int16_t>(0x8000));
  const __m256i rest = _mm256_srli_epi16(_mm256_andnot_si256(top, words), kSkip);
  return _mm512_cvtph_ps(_mm256_or_si256(_mm256_and_si256(top, words), rest));
}
// The lower (shift 0) or upper (shift 4) four bits of 16 bytes.
template <int kShift>
inline Vec load_nibbles(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return widen_signed(_mm_and_si128(_mm_srli_epi16(bytes, kShift), _mm_set1_epi8(15)));
}
// The lower four bits of 8 bytes, then the upper.
inline Vec load_packed_nibbles(const uint8_t* p) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  const __m128i both = _mm_unpacklo_epi64(bytes, _mm_srli_epi16(bytes, 4));
  return widen_signed(_mm_and_si128(both, _mm_set1_epi8(15)));
}

inline Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec square_root(Vec a) { return _mm512_sqrt_ps(a); }
// b where either is NaN.
inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline Vec round(Vec a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// a * 2^n for integral n in [-126, 128].
inline Vec scale_by_power(Vec a, Vec n) { return _mm512_scalef_ps(a, n); }
inline Vec swap_pairs(Vec a) { return _mm512_permute_ps(a, 0xB1); }

inline Mask greater(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
inline Mask equal(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
inline Mask less(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
// Lane i from `a` where mask has bit i, else from `b`.
inline Vec select(Mask mask, Vec a, Vec b) { return _mm512_mask_blend_ps(static_cast<__mmask16>(mask), b, a); }

inline float reduce_add(Vec a) { return _mm512_reduce_add_ps(a); }
inline float reduce_max(Vec a) { return _mm512_reduce_max_ps(a); }

inline int32_t write_indices(Mask mask, int32_t base, int32_t* out) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  _mm512_mask_compressstoreu_epi32(out, static_cast<__mmask16>(mask), _mm512_add_epi32(lanes, _mm512_set1_epi32(base)));
  return __builtin_popcount(mask);
}

inline void prefetch_far(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
