// Codes and scales of 8 rows out of a packed record. A panel's 64-byte group is two registers: rows 0 to 7 and 8 to 15.
//
// A source gives, for block 0 or 1 of a record and rows Row .. Row + 7 (Row is 0 or 8): code<Group, Row>() as bytes
// (4 consecutive k of each row), unsigned unless kIsSigned; d<Half, Row>() and m<Half, Row>() as floats.
#pragma once

#include <immintrin.h>

#include "kernels/generic/act_tile.h"

namespace octavo::avx2 {
namespace {

constexpr int kWidestTile = 4;
constexpr int kNarrowestTile = 1;

using Rows = int32_t;

#include "kernels/generic/linear_tile.h"

constexpr int32_t kPairTiles = 0;

template <int Row>
OCTAVO_INLINE __m256i load_group(const uint8_t (&lanes)[64]) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(lanes + 4 * Row));
}

OCTAVO_INLINE __m256 load_f16(const uint16_t* halves) {
  return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(halves)));
}

template <int Group, int Row>
OCTAVO_INLINE __m256i nibbles(const uint8_t (&groups)[4][64]) {
  const __m256i both = load_group<Row>(groups[Group % 4]);
  return _mm256_and_si256(Group < 4 ? both : _mm256_srli_epi16(both, 4), _mm256_set1_epi8(0x0f));
}

template <int Left>
OCTAVO_INLINE __m256i shift(__m256i lanes) {
  if constexpr (Left > 0) return _mm256_slli_epi16(lanes, Left);
  if constexpr (Left < 0) return _mm256_srli_epi16(lanes, -Left);
  return lanes;
}

// (plane & mask) | low. Neighbouring bytes may have been shifted into the plane; the mask drops them.
OCTAVO_INLINE __m256i merge(__m256i low, __m256i plane, int8_t mask) {
  return _mm256_or_si256(_mm256_and_si256(plane, _mm256_set1_epi8(mask)), low);
}

template <int Group, int Row>
OCTAVO_INLINE __m256i five_bits(const uint8_t (&groups)[4][64], const uint8_t (&fifth)[64]) {
  return merge(nibbles<Group, Row>(groups), shift<4 - Group>(load_group<Row>(fifth)), 0x10);
}

template <int Group, int Row>
OCTAVO_INLINE __m256i two_bits(const uint8_t (&planes)[2][64]) {
  const __m256i four = shift<-2 * (Group % 4)>(load_group<Row>(planes[Group / 4]));
  return _mm256_and_si256(four, _mm256_set1_epi8(0x03));
}

// kGroupsPerSum: how many products of two codes and two activations add up without leaving int16. 8 for 4 bits: 8 * 2 *
// 15 * 127 = 30,480.
template <class CodesOfFormat, int GroupsPerSum>
struct PackedSource {
  using Codes = CodesOfFormat;
  using Record = typename Codes::Record;
  static constexpr int kGroupsPerSum = GroupsPerSum;
  static constexpr bool kIsSigned = false;

  template <int Half, int Row>
  OCTAVO_INLINE static __m256 d(const Record& record, int32_t block) {
    return load_f16(Codes::d(record, block, Half) + Row);
  }
  template <int Half, int Row>
  OCTAVO_INLINE static __m256 m(const Record& record, int32_t block) {
    return load_f16(Codes::m(record, block, Half) + Row);
  }
};

struct SourceQ2_K : PackedSource<CodesQ2_K, 4> {
  template <int Group, int Row>
  OCTAVO_INLINE static __m256i code(const Record& record, int32_t block) {
    return two_bits<Group, Row>(record.block[block].codes);
  }
};

struct SourceQ3_K : PackedSource<CodesQ3_K, 4> {
  template <int Group, int Row>
  OCTAVO_INLINE static __m256i code(const Record& record, int32_t block) {
    const __m256i plane = shift<2 - Group>(load_group<Row>(record.block[block].third));
    return merge(two_bits<Group, Row>(record.block[block].low), plane, 0x04);
  }
};

struct SourceQ4_0 : PackedSource<CodesQ4_0, 8> {
  template <int Group, int Row>
  OCTAVO_INLINE static __m256i code(const Record& record, int32_t block) {
    return nibbles<Group, Row>(record.codes[block]);
  }
};

struct SourceQ4_1 : PackedSource<CodesQ4_1, 8> {
  template <int Group, int Row>
  OCTAVO_INLINE static __m256i code(const Record& record, int32_t block) {
    return nibbles<Group, Row>(record.codes[block]);
  }
};

// 4 * 2 * 31 * 127 = 31,496.
struct SourceQ5_0 : PackedSource<CodesQ5_0, 4> {
  template <int Group, int Row>
  OCTAVO_INLINE static __m256i code(const Record& record, int32_t block) {
    return five_bits<Group, Row>(record.block[block].nibbles, record.block[block].fifth);
  }
};

struct SourceQ5_1 : PackedSource<CodesQ5_1, 4> {
  template <int Group, int Row>
  OCTAVO_INLINE static __m256i code(const Record& record, int32_t block) {
    return five_bits<Group, Row>(record.block[block].nibbles, record.block[block].fifth);
  }
};

// 2 * 2 * 63 * 127 = 32,004.
struct SourceQ6_K : PackedSource<CodesQ6_K, 2> {
  template <int Group, int Row>
  OCTAVO_INLINE static __m256i code(const Record& record, int32_t block) {
    const __m256i plane = shift<4 - Group % 4 * 2>(load_group<Row>(record.block[block].upper[Group / 4]));
    return merge(nibbles<Group, Row>(record.block[block].nibbles), plane, 0x30);
  }
};

// Two products of unsigned 8-bit codes would saturate int16. Signed they do not: 2 * 128 * 127 = 32,512.
struct SourceQ8_0 : PackedSource<CodesQ8_0, 1> {
  static constexpr bool kIsSigned = true;

  template <int Group, int Row>
  OCTAVO_INLINE static __m256i code(const Record& record, int32_t block) {
    return _mm256_xor_si256(load_group<Row>(record.codes[block][Group]), _mm256_set1_epi8(-128));
  }
};

// Levels are 8-bit codes too.
struct SourceIQ4 : PackedSource<CodesIQ4, 1> {
  static constexpr bool kIsSigned = true;

  template <int Group, int Row>
  OCTAVO_INLINE static __m256i code(const Record& record, int32_t block) {
    const __m128i levels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kIQ4Levels));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(levels), nibbles<Group, Row>(record.codes[block]));
  }
};

}  // namespace
}  // namespace octavo::avx2
