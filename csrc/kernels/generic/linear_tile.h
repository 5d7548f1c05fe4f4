// Included inside `namespace octavo::<isa> { namespace {` after the ISA's type Rows: no include, no namespace here.
// What the tile functions of every ISA take, and packs of integers to expand over tokens and groups.

#define OCTAVO_INLINE [[gnu::always_inline]] inline

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

// Panels are one stream in memory order: the bytes this far ahead are needed soon, in this panel or the next. Left to
// the hardware prefetcher alone, AVX2 reads from memory at half to nine tenths of the speed whatever the number of
// tokens, AVX-512 at 0.4 with four, for activations fall out of the L1 cache, and at 0.7 to 1 with one. Distances of 1
// to 4 KB get in its way (0.65 to 0.9), those of 5 to 12 KB are alike (all on Zen 4).
constexpr size_t kFarAhead = 7168;

// What is asked for ahead of a stream that wants `Distance` where not all do best with kFarAhead.
template <size_t Distance>
OCTAVO_INLINE size_t prefetch_distance() {
  return Distance == kFarAhead || all_streams_far_ahead ? kFarAhead : Distance;
}

// Asks for `Bytes` from `distance` behind `weights` on. 0: for nothing.
template <size_t Bytes>
OCTAVO_INLINE void prefetch_weights(const void* weights, size_t distance = kFarAhead) {
  if (distance == 0) return;
  const char* ahead = static_cast<const char*>(weights) + distance;
#pragma GCC unroll 32
  for (size_t line = 0; line < Bytes; line += 64) __builtin_prefetch(ahead + line, 0, 2);
}

// A panel's records, and the activations of a tile: places from `lane` of an activation tile of 8 on.
template <class Source>
struct TileIn {
  const typename Source::Record* records;
  int32_t num_records;
  const ActBlock* acts;
  int32_t lane;

  const ActResidual& residual(int32_t i) const {
    return reinterpret_cast<const ActResidual*>(acts + 2 * num_records)[i];
  }
};

// A panel of float weights, [cols][16 rows].
template <class Weight>
struct FloatPanel {
  const Weight* weights;
  int32_t cols;
};

// Where a tile's results go: `tokens` rows of 16 floats, of which `rows` are written. With one term a token's residuals
// are added to its place; with two its result is that of place 2 t plus that of place 2 t + 1.
struct TileOut {
  float* out;
  size_t stride;
  int32_t tokens;
  Rows rows;
  int16_t terms;
};

struct Operands;

// Only where there are pairs of panels.
template <class Source>
int32_t multiply_panel_pair(const std::byte* panels, const Operands& in, Rows rows_b, float* out);
