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
