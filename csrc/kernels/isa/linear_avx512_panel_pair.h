// Included inside `namespace octavo::<isa> { namespace {`: no include, no namespace here.
// Two panels times tiles of 8 places, for processors whose two vector ports do all 512-bit arithmetic and whose two load
// ports are as busy (Intel). The bits are those of linear_avx512_tile.h.
//
// The first of several tiles unpacks the codes for the others. Two panels share each load of an activation, and 16 sums are
// under way instead of 8, which leaves no registers for accumulators: they are in memory. So columns can be taken in parts,
// which stay in the first-level cache while all tiles pass by, and meanwhile the tiles ask for the next part.
//
// Besides what tiles use, the table's linear_dot.h says:
//
//   kSharesActivations   whether there are registers for the sums of both panels; then there is
//   add_products_of_two<Source>(Ints<groups>, tokens, record a, record b, block, q, sums_a, sums_b)

#include "kernels/generic/linear_operands.h"

struct alignas(64) PairSums {
  float a[kTileTokens][kPanelRows];
  float b[kTileTokens][kPanelRows];
};

// The next lines of two panels that a tile asks for, so many of each with each of its records.
struct PairAhead {
  const char* a;
  const char* b;
  int32_t lines;

  OCTAVO_INLINE void ask() {
    for (int32_t line = 0; line < lines; ++line, a += 64, b += 64) {
      __builtin_prefetch(a, 0, 2);
      __builtin_prefetch(b, 0, 2);
    }
  }
  void skip(int32_t records) {
    a += static_cast<size_t>(64) * records * lines;
    b += static_cast<size_t>(64) * records * lines;
  }
};

// "memory": the compiler would else keep some accumulators in registers from block to block, and sums on the stack.
template <class Source, int Half, class Record, int... T>
OCTAVO_INLINE void add_scaled_in_memory(Ints<T...> tokens, const Record& record, int32_t block, const ActBlock& act,
                                        const __m512i (&sums)[sizeof...(T)], float (&memory)[kTileTokens][kPanelRows]) {
  __m512 acc[] = {_mm512_load_ps(memory[T])...};
  add_scaled<Source, Half>(tokens, record, block, act, sums, acc);
  (_mm512_store_ps(memory[T], acc[T]), ...);
  asm volatile("" : : : "memory");
}

template <class Source, int Half, class Record, int... G, int... T>
OCTAVO_INLINE void add_pair_run(Ints<G...> groups, Ints<T...> tokens, const Record& a, const Record& b, int32_t block,
                                const ActBlock& act, PairSums& acc) {
  using Codes = typename Source::Codes;
  __m512i sums_a[] = {start_sum<Codes, Half>(act, T)...};
  if constexpr (kSharesActivations) {
    __m512i sums_b[] = {start_sum<Codes, Half>(act, T)...};
    add_products_of_two<Source>(groups, tokens, a, b, block, act.q, sums_a, sums_b);
    add_scaled_in_memory<Source, Half>(tokens, a, block, act, sums_a, acc.a);
    add_scaled_in_memory<Source, Half>(tokens, b, block, act, sums_b, acc.b);
  } else {
    add_products<Source>(groups, tokens, a, block, act.q, sums_a);
    add_scaled_in_memory<Source, Half>(tokens, a, block, act, sums_a, acc.a);
    __m512i sums_b[] = {start_sum<Codes, Half>(act, T)...};
    add_products<Source>(groups, tokens, b, block, act.q, sums_b);
    add_scaled_in_memory<Source, Half>(tokens, b, block, act, sums_b, acc.b);
  }
}

template <class Source, class Record>
OCTAVO_INLINE void add_pair_block(const Record& a, const Record& b, int32_t block, const ActBlock& act, PairSums& acc) {
  constexpr FirstInts<kTileTokens>::type kTokens;
  if constexpr (Source::Codes::kHalves == 2) {
    add_pair_run<Source, 0>(Ints<0, 1, 2, 3>{}, kTokens, a, b, block, act, acc);
    add_pair_run<Source, 1>(Ints<4, 5, 6, 7>{}, kTokens, a, b, block, act, acc);
  } else {
    add_pair_run<Source, 0>(Ints<0, 4, 1, 5, 2, 6, 3, 7>{}, kTokens, a, b, block, act, acc);
  }
}

// acc += the products of `count` records of both panels and a tile.
template <class Source, class Records>
[[gnu::noinline]] void add_pair(Records a, Records b, int32_t count, const ActBlock* acts, PairAhead ahead,
                                PairSums& acc) {
  for (int32_t i = 0; i < count; ++i) {
    ahead.ask();
    const auto& of_a = a[i];
    const auto& of_b = b[i];
    add_pair_block<Source>(of_a, of_b, 0, acts[2 * i], acc);
    add_pair_block<Source>(of_a, of_b, 1, acts[2 * i + 1], acc);
  }
}

// Adds the residuals of a tile and writes its results. a, b: the whole panels; tile: where the results of panel a go.
template <class Source>
[[gnu::noinline]] void end_pair(const typename Source::Record* a, const typename Source::Record* b,
                                const ActResidual* residuals, const PairSums& acc, TileOut tile, Rows rows_b) {
  TileOut tile_b = tile;
  tile_b.out += kPanelRows;
  tile_b.rows = rows_b;
#pragma GCC unroll 1
  for (int32_t t = 0; t < tile.tokens; ++t) {
    const int32_t place = t * tile.terms;
    __m512 of_a = _mm512_load_ps(acc.a[place]);
    __m512 of_b = _mm512_load_ps(acc.b[place]);
    if (tile.terms == 2) {
      of_a = _mm512_add_ps(of_a, _mm512_load_ps(acc.a[place + 1]));
      of_b = _mm512_add_ps(of_b, _mm512_load_ps(acc.b[place + 1]));
    } else {
#pragma GCC unroll 1
      for (int32_t i = 0; i < kResidualBlocks; ++i) {
        of_a = add_residual<Source>(a, residuals[i], t, of_a);
        of_b = add_residual<Source>(b, residuals[i], t, of_b);
      }
    }
    store_token(tile, t, of_a);
    store_token(tile_b, t, of_b);
  }
}

// --- how tiles get at the records ------------------------------------------------------------------------------------

constexpr int32_t kPairTiles = 16;    // at most, for one pair
constexpr int32_t kPartRecords = 10;  // two unpacked panels of so many take half of a first-level cache of 48 KB

// Panels of up to so many records stay unpacked to the end, where residuals read them. Of wider ones each part takes the
// place of the one before, and residuals, which are few there, read packed records.
constexpr int32_t kKeptRecords = 4 * kPartRecords;

struct PairMemory {
  alignas(64) std::byte unpacked[2][kKeptRecords * sizeof(Unpacked<SourceQ2_K>::Record)];
  PairSums sums[kPairTiles];
};
thread_local PairMemory pair_memory;

// Records [begin, begin + size) of both panels.
struct PairPart {
  int32_t begin, size;
};

template <class Source>
struct PanelPair {
  const typename Source::Record* a;
  const typename Source::Record* b;
  int32_t count;  // records of each
  int32_t tiles;

  void add(PairPart part, int32_t tile, const ActBlock* acts, PairAhead ahead, PairSums& acc) const {
    const auto* packed_a = a + part.begin;
    const auto* packed_b = b + part.begin;
    if (!unpacks()) return add_pair<Source>(packed_a, packed_b, part.size, acts, ahead, acc);
    if constexpr (Source::kUnpacks) {
      auto* const unpacked_a = unpacked(0) + (is_kept() ? part.begin : 0);
      auto* const unpacked_b = unpacked(1) + (is_kept() ? part.begin : 0);
      if (tile == 0) {
        using Records = typename Unpacking<Source>::Records;
        add_pair<Unpacking<Source>>(Records{packed_a, unpacked_a}, Records{packed_b, unpacked_b}, part.size, acts, ahead,
                                    acc);
      } else {
        add_pair<Unpacked<Source>>(unpacked_a, unpacked_b, part.size, acts, ahead, acc);
      }
    }
  }

  void end(const ActResidual* residuals, const PairSums& acc, const TileOut& tile, Rows rows_b) const {
    if constexpr (Source::kUnpacks) {
      if (unpacks() && is_kept()) return end_pair<Unpacked<Source>>(unpacked(0), unpacked(1), residuals, acc, tile, rows_b);
    }
    end_pair<Source>(a, b, residuals, acc, tile, rows_b);
  }

  // What is read behind a part: the next one, or the first of the next two panels.
  PairAhead ahead_of(PairPart part) const {
    const int32_t end = part.begin + part.size;
    const auto* next_a = end < count ? a + end : b + count;
    const auto* next_b = end < count ? b + end : b + 2 * count;
    constexpr int32_t kLines = sizeof(*a) / 64;
    return {reinterpret_cast<const char*>(next_a), reinterpret_cast<const char*>(next_b), (kLines - 1) / tiles + 1};
  }

 private:
  bool unpacks() const { return Source::kUnpacks && tiles > 1; }
  bool is_kept() const { return count <= kKeptRecords; }
  static auto* unpacked(int32_t panel) {
    return reinterpret_cast<typename Unpacked<Source>::Record*>(pair_memory.unpacked[panel]);
  }
};

// Multiplies the tiles of `in` by two panels, the second right behind the first. A tile that is not whole is left if half
// of it would be enough; returns the place where it begins.
template <class Source>
int32_t multiply_panel_pair(const std::byte* panels, const Operands& in, Rows rows_b, float* out) {
  const int32_t count = num_records(in.cols), tiles = (in.places() + kTileTokens / 2 - 1) / kTileTokens;
  const auto* records = reinterpret_cast<const typename Source::Record*>(panels);
  const PanelPair<Source> pair = {records, records + count, count, tiles};
  const int32_t parts = (count - 1) / kPartRecords + 1;
  PairSums* const sums = pair_memory.sums;
  for (int32_t i = 0; i < parts; ++i) {
    const int32_t begin = count * i / parts;
    const PairPart part = {begin, count * (i + 1) / parts - begin};
    PairAhead ahead = pair.ahead_of(part);
    for (int32_t tile = 0; tile < tiles; ++tile) {
      const int32_t place = tile * kTileTokens, left = in.places() - place;
      const ActBlock* acts = in.tile(place);
      PairSums& acc = sums[parts > 1 ? tile : 0];
      if (i == 0) acc = {};
      pair.add(part, tile, acts + 2 * begin, ahead, acc);
      ahead.skip(part.size);
      if (i + 1 < parts) continue;
      const auto* residuals = reinterpret_cast<const ActResidual*>(acts + 2 * count);
      const int32_t places = left < kTileTokens ? left : kTileTokens;
      pair.end(residuals, acc, in.tile_out(out, place, places, first_rows(kPanelRows)), rows_b);
      if (in.fetch != nullptr) fetch_lines(*in.fetch);
    }
  }
  return tiles * kTileTokens;
}
