// Included inside `namespace octavo::<isa> { namespace {`: no include, no namespace here.
// Where a tile kernel takes its codes and scales from.
//
// A source gives, for block 0 or 1 of a record: code<Group>() as unsigned bytes (lane r: 4 consecutive k of row r),
// d<Half, IsLine>() and m<Half, IsLine>() as floats of the 16 rows; see load_scales.
// kUnpacks: whether a panel is best unpacked once for several tiles, which then read Unpacked<Source>.
// kPrefetchDistance<Tokens>: how many bytes ahead a tile asks for records, unless the processor has all of them far ahead
// (cpu/traits.h); 0: not at all.

using Rows = __mmask16;

#include "kernels/generic/linear_tile.h"

// Has the compiler load a value once, where it would have each use load it again.
template <class Vector>
OCTAVO_INLINE Vector in_register(Vector value) {
  asm("" : "+v"(value));
  return value;
}

OCTAVO_INLINE __m512i load_group(const uint8_t* lanes) { return _mm512_load_si512(lanes); }

OCTAVO_INLINE __m512 load_f16(const uint16_t* halves) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(halves)));
}

// The 16 scales at `halves`, part 0 or 1 of a line. IsLine: load all of it, so that the lines of a record are read in
// turn and each at once, which is what the hardware prefetcher follows best. For one token, which waits for memory, and
// where `part` is known when compiling; more tokens wait for the multipliers, which have nothing to do with a load.
template <bool IsLine>
OCTAVO_INLINE __m512 load_scales(const uint16_t* halves, int32_t part) {
  if constexpr (!IsLine) return load_f16(halves);
  const __m512i line = _mm512_load_si512(halves - 16 * part);
  return _mm512_cvtph_ps(part == 0 ? _mm512_castsi512_si256(line) : _mm512_extracti64x4_epi64(line, 1));
}

template <int Group>
OCTAVO_INLINE __m512i nibbles(const uint8_t (&groups)[4][64]) {
  const __m512i both = load_group(groups[Group % 4]);
  return _mm512_and_si512(Group < 4 ? both : _mm512_srli_epi32(both, 4), _mm512_set1_epi8(0x0f));
}

// (plane & mask) | low. Neighbouring bytes may have been shifted into the plane; the mask drops them.
OCTAVO_INLINE __m512i merge(__m512i low, __m512i plane, int8_t mask) {
  return _mm512_ternarylogic_epi32(low, plane, _mm512_set1_epi8(mask), 0xf8);
}

template <int Left>
OCTAVO_INLINE __m512i shift(__m512i lanes) {
  if constexpr (Left > 0) return _mm512_slli_epi32(lanes, Left);
  if constexpr (Left < 0) return _mm512_srli_epi32(lanes, -Left);
  return lanes;
}

template <int Group>
OCTAVO_INLINE __m512i five_bits(const uint8_t (&groups)[4][64], const uint8_t (&fifth)[64]) {
  return merge(nibbles<Group>(groups), shift<4 - Group>(load_group(fifth)), 0x10);
}

template <int Group>
OCTAVO_INLINE __m512i two_bits(const uint8_t (&planes)[2][64]) {
  const __m512i four = shift<-2 * (Group % 4)>(load_group(planes[Group / 4]));
  return _mm512_and_si512(four, _mm512_set1_epi8(0x03));
}

template <class CodesOfFormat>
struct PackedScales {
  using Codes = CodesOfFormat;
  using Record = typename Codes::Record;
  static constexpr bool kUnpacks = true;
  template <size_t Tokens>
  static constexpr size_t kPrefetchDistance = kFarAhead;

  template <int Half, bool IsLine>
  OCTAVO_INLINE static __m512 d(const Record& record, int32_t block) {
    return load_scales<IsLine>(Codes::d(record, block, Half), part(Half, block));
  }
  template <int Half, bool IsLine>
  OCTAVO_INLINE static __m512 m(const Record& record, int32_t block) {
    return load_scales<IsLine>(Codes::m(record, block, Half), part(Half, block));
  }

 private:
  // Which of the runs of 16 in its line a scale is.
  OCTAVO_INLINE static constexpr int32_t part(int32_t half, int32_t block) {
    return Codes::kHalves == 2 ? half : block;
  }
};

struct SourceQ2_K : PackedScales<CodesQ2_K> {
  template <int Group>
  OCTAVO_INLINE static __m512i code(const Record& record, int32_t block) {
    return two_bits<Group>(record.block[block].codes);
  }
};

struct SourceQ3_K : PackedScales<CodesQ3_K> {
  template <int Group>
  OCTAVO_INLINE static __m512i code(const Record& record, int32_t block) {
    const __m512i plane = shift<2 - Group>(load_group(record.block[block].third));
    return merge(two_bits<Group>(record.block[block].low), plane, 0x04);
  }
};

struct SourceQ4_0 : PackedScales<CodesQ4_0> {
  template <int Group>
  OCTAVO_INLINE static __m512i code(const Record& record, int32_t block) {
    return nibbles<Group>(record.codes[block]);
  }
};

struct SourceQ4_1 : PackedScales<CodesQ4_1> {
  template <int Group>
  OCTAVO_INLINE static __m512i code(const Record& record, int32_t block) {
    return nibbles<Group>(record.codes[block]);
  }
};

struct SourceIQ4 : PackedScales<CodesIQ4> {
  template <int Group>
  OCTAVO_INLINE static __m512i code(const Record& record, int32_t block) {
    const __m128i levels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kIQ4Levels));
    const __m512i plus_128 = _mm512_broadcast_i32x4(_mm_xor_si128(levels, _mm_set1_epi8(-128)));
    return _mm512_shuffle_epi8(plus_128, nibbles<Group>(record.codes[block]));
  }
};

struct SourceQ5_0 : PackedScales<CodesQ5_0> {
  template <int Group>
  OCTAVO_INLINE static __m512i code(const Record& record, int32_t block) {
    return five_bits<Group>(record.block[block].nibbles, record.block[block].fifth);
  }
};

struct SourceQ5_1 : PackedScales<CodesQ5_1> {
  template <int Group>
  OCTAVO_INLINE static __m512i code(const Record& record, int32_t block) {
    return five_bits<Group>(record.block[block].nibbles, record.block[block].fifth);
  }
};

struct SourceQ6_K : PackedScales<CodesQ6_K> {
  template <size_t Tokens>
  static constexpr size_t kPrefetchDistance = Tokens > 1 ? kFarAhead : 0;

  template <int Group>
  OCTAVO_INLINE static __m512i code(const Record& record, int32_t block) {
    const __m512i plane = shift<4 - Group % 4 * 2>(load_group(record.block[block].upper[Group / 4]));
    return merge(nibbles<Group>(record.block[block].nibbles), plane, 0x30);
  }
};

struct SourceQ8_0 : PackedScales<CodesQ8_0> {
  template <size_t Tokens>
  static constexpr size_t kPrefetchDistance = Tokens > 2 ? kFarAhead : 1536;
  static constexpr bool kUnpacks = false;  // but for scales there is nothing to unpack

  template <int Group>
  OCTAVO_INLINE static __m512i code(const Record& record, int32_t block) {
    return load_group(record.codes[block][Group]);
  }
};
