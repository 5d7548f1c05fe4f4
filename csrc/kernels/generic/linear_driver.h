// Included inside `namespace octavo::<isa> { namespace {` after the ISA's vocabulary: no include, no namespace here.
// The matrix product: panels, tiles, and which kernel a format gets. The vocabulary is linear_tile.h and
//
//   Rows, first_rows(count)       which rows of a panel are written: the first `count` of 16
//   kWidestTile, kNarrowestTile   places of the widest and of the narrowest tile: powers of two up to 8
//   Source<format>                how records are read; Source::Record
//   kPairTiles                    at most so many tiles can be multiplied by two panels at once, by
//                                 multiply_panel_pair<Source>(panels, Operands, rows of the second, out), which returns
//                                 the place where the rest begins; 0: none
//   multiply_tile<Source, Width>(records, count, acts, lane, TileOut)   places from `lane` of an activation tile on
//   multiply_float_tile<Weight, Width>(FloatPanel, x, x_stride, TileOut)

#include "kernels/generic/linear_operands.h"

// A group of activation tiles stays in the first-level cache while the panels of a strip pass by; the strip stays in the
// second while group after group does. Panels in pairs take parts of tiles, and have activations in the second as well.
constexpr size_t kGroupBytes = 20480;
constexpr size_t kStripBytes = 196608;

template <int N>
struct Width {
  static constexpr int kPlaces = N;
};

template <int N, class Tile>
OCTAVO_INLINE void last_tile(int32_t first, int32_t count, Tile tile) {
  if constexpr (N > kNarrowestTile) {
    if (count <= N / 2) return last_tile<N / 2>(first, count, tile);
  }
  tile(Width<N>{}, first, count);
}

// Calls tile(Width, first place, places in the tile) for each tile from place `first` on. The last one takes the narrowest
// kernel that holds it; places of the padding are computed and dropped.
template <class Tile>
OCTAVO_INLINE void for_each_tile(int32_t first, int32_t places, Tile tile) {
  for (; first + kWidestTile <= places; first += kWidestTile) tile(Width<kWidestTile>{}, first, kWidestTile);
  if (first < places) last_tile<kWidestTile>(first, places - first, tile);
}

template <class Source, int N>
OCTAVO_INLINE void multiply_one_tile(const typename Source::Record* records, const Operands& in, Rows rows, float* out,
                                     int32_t first, int32_t places) {
  multiply_tile<Source, N>(records, num_records(in.cols), in.tile(first), first % kTileTokens,
                           in.tile_out(out, first, places, rows));
  if (in.fetch != nullptr) fetch_lines(*in.fetch);
}

// The tiles from place `first` on.
template <class Source>
void multiply_panel(const std::byte* panel, const Operands& in, int32_t first, Rows rows, float* out) {
  const auto* records = reinterpret_cast<const typename Source::Record*>(panel);
  for_each_tile(first, in.places(), [&](auto width, int32_t first, int32_t places) {
    multiply_one_tile<Source, width.kPlaces>(records, in, rows, out, first, places);
  });
}

template <class Weight>
void multiply_float_panel(const std::byte* bytes, const Operands& in, int32_t first, Rows rows, float* out) {
  const FloatPanel<Weight> panel = {reinterpret_cast<const Weight*>(bytes), in.cols};
  for_each_tile(first, in.tokens, [&](auto width, int32_t first, int32_t tokens) {
    multiply_float_tile<Weight, width.kPlaces>(panel, in.x + first * in.x_stride, in.x_stride,
                                               {out + first * in.out_stride, in.out_stride, tokens, rows, 1});
  });
}

struct PanelKernels {
  void (*one)(const std::byte* panel, const Operands& in, int32_t first, Rows rows, float* out);
  int32_t (*pair)(const std::byte* panels, const Operands& in, Rows rows_b, float* out);  // null: panels go one by one
};

template <class Source>
PanelKernels kernels_of() {
  if constexpr (kPairTiles > 0) {
    if (panels_in_pairs) return {multiply_panel<Source>, multiply_panel_pair<Source>};
  }
  return {multiply_panel<Source>, nullptr};
}

// The one place where a format of packed.h meets its kernels.
PanelKernels panel_kernels(WeightFormat format) {
  switch (format) {
    case WeightFormat::F32: return {multiply_float_panel<float>, nullptr};
    case WeightFormat::F16: return {multiply_float_panel<uint16_t>, nullptr};
    case WeightFormat::BF16: return {multiply_float_panel<Bf16>, nullptr};
    case WeightFormat::Q2_K: return kernels_of<SourceQ2_K>();
    case WeightFormat::Q3_K: return kernels_of<SourceQ3_K>();
    case WeightFormat::Q4_0: return kernels_of<SourceQ4_0>();
    case WeightFormat::Q4_1:
    case WeightFormat::Q4_K: return kernels_of<SourceQ4_1>();
    case WeightFormat::Q5_0: return kernels_of<SourceQ5_0>();
    case WeightFormat::Q5_1:
    case WeightFormat::Q5_K: return kernels_of<SourceQ5_1>();
    case WeightFormat::Q6_K: return kernels_of<SourceQ6_K>();
    case WeightFormat::Q8_0: return kernels_of<SourceQ8_0>();
    case WeightFormat::IQ4_NL:
    case WeightFormat::IQ4_XS: return kernels_of<SourceIQ4>();
  }
  return {};
}

// How many of something that takes `bytes` fit into `space`, at least one.
inline int32_t count_in(size_t space, size_t bytes) { return bytes < space ? static_cast<int32_t>(space / bytes) : 1; }

// Panels [begin, end) times the tokens of `in`.
void multiply_panels(const PanelKernels& kernels, const PackedMatrix& weights, const Operands& in, int32_t begin,
                     int32_t end, float* out) {
  const auto rows = [&](int32_t panel) {
    const int32_t left = weights.rows - panel * kPanelRows;
    return first_rows(left < kPanelRows ? left : kPanelRows);
  };
  const bool in_pairs = kernels.pair != nullptr && in.places() > kTileTokens / 2;  // fewer are half a tile
  for (int32_t p = begin; p < end;) {
    const bool is_pair = in_pairs && p + 1 < end;
    const std::byte* data = weights.data + p * weights.panel_bytes;
    const int32_t done = is_pair ? kernels.pair(data, in, rows(p + 1), out + p * kPanelRows) : 0;
    for (int32_t next = is_pair ? p + 2 : p + 1; p < next; ++p, data += weights.panel_bytes) {
      if (done < in.places()) kernels.one(data, in, done, rows(p), out + p * kPanelRows);
    }
  }
}

void multiply(const PackedMatrix& weights, const MultiplyInput& input, int32_t panel_begin, int32_t panel_end, float* out,
              size_t out_stride, FetchQueue* fetch) {
  const PanelKernels kernels = panel_kernels(weights.format);
  const int32_t terms = num_terms(input.precision);
  const int32_t tile_tokens = kTileTokens / terms;
  const size_t tile_bytes = act_tile_bytes(weights.cols, terms);
  const int32_t group_tiles = kernels.pair != nullptr ? kPairTiles : count_in(kGroupBytes, tile_bytes);
  const int32_t group = group_tiles * tile_tokens;
  const int32_t strip = 2 * count_in(kStripBytes, 2 * weights.panel_bytes);
  for (int32_t from = panel_begin; from < panel_end; from += strip) {
    const int32_t to = from + strip < panel_end ? from + strip : panel_end;
    for (int32_t t = 0; t < input.tokens; t += group) {
      const Operands in = {input.acts == nullptr ? nullptr : input.acts + t / tile_tokens * tile_bytes,
                           input.x + t * input.x_stride,
                           input.x_stride,
                           input.tokens - t < group ? input.tokens - t : group,
                           terms,
                           weights.cols,
                           out_stride,
                           fetch};
      multiply_panels(kernels, weights, in, from, to, out + t * out_stride);
    }
  }
}
