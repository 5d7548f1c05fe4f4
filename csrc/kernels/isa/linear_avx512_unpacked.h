// Included inside `namespace octavo::<isa> { namespace {`: no include, no namespace here.
// Sources of linear_avx512_panel_pair.h: panels that the first tile of tokens unpacks for the others.

// A 32-block: codes as unsigned bytes; scales, then minima, as floats.
template <class Codes>
struct alignas(64) UnpackedBlock {
  uint8_t codes[8][64];
  float scales[Codes::kHalves * (Codes::kHasMin ? 2 : 1)][kPanelRows];
};

template <class Source>
struct Unpacked {
  using Codes = typename Source::Codes;
  struct Record {
    UnpackedBlock<Codes> block[2];
  };

  template <int Group>
  OCTAVO_INLINE static __m512i code(const Record& record, int32_t block) {
    return load_group(record.block[block].codes[Group]);
  }
  template <int Half, bool IsLine>
  OCTAVO_INLINE static __m512 d(const Record& record, int32_t block) {
    return _mm512_load_ps(record.block[block].scales[Half]);
  }
  template <int Half, bool IsLine>
  OCTAVO_INLINE static __m512 m(const Record& record, int32_t block) {
    return _mm512_load_ps(record.block[block].scales[Codes::kHalves + Half]);
  }
};

// Reads packed records and leaves each unpacked: whoever reads all codes, scales and minima of a record has written all of
// its unpacked form.
template <class Source>
struct Unpacking {
  using Codes = typename Source::Codes;
  struct Record {
    const typename Source::Record& packed;
    typename Unpacked<Source>::Record& unpacked;
  };
  struct Records {
    const typename Source::Record* packed;
    typename Unpacked<Source>::Record* unpacked;
    OCTAVO_INLINE Record operator[](int32_t i) const { return {packed[i], unpacked[i]}; }
  };

  template <int Group>
  OCTAVO_INLINE static __m512i code(const Record& record, int32_t block) {
    const __m512i codes = Source::template code<Group>(record.packed, block);
    _mm512_store_si512(record.unpacked.block[block].codes[Group], codes);
    return codes;
  }
  template <int Half, bool IsLine>
  OCTAVO_INLINE static __m512 d(const Record& record, int32_t block) {
    return keep(Source::template d<Half, IsLine>(record.packed, block), record.unpacked.block[block].scales[Half]);
  }
  template <int Half, bool IsLine>
  OCTAVO_INLINE static __m512 m(const Record& record, int32_t block) {
    return keep(Source::template m<Half, IsLine>(record.packed, block),
                record.unpacked.block[block].scales[Codes::kHalves + Half]);
  }

 private:
  OCTAVO_INLINE static __m512 keep(__m512 scales, float* unpacked) {
    _mm512_store_ps(unpacked, scales);
    return scales;
  }
};
