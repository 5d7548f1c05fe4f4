// Included inside `namespace octavo::<isa> { namespace {` after the ISA's vocabulary: no include, no namespace here.
// The matrix product: panels, tiles, and which kernel a format gets. A tile is of places in the activations: one a token,
// two with Precision::kInt8x2. The vocabulary is linear_tile.h and
//
//   Rows, first_rows(count)       which rows of a panel are written: the first `count` of 16
//   kWidestTile, kNarrowestTile   places of the widest and of the narrowest tile: powers of two up to 8
//   Source<format>                how records are read; Source::Record
//   kMaxUnpackedCols              panels of more columns are never unpacked for several tiles; 0: none is. Others are
//                                 where Source::kUnpacks, by Unpacked<Source>::unpack(records, count), which gives
//                                 Unpacked<Source>::Record, good until the thread's next call
//   multiply_tile<Source, Width>(records, count, acts, lane, TileOut)   places from `lane` of an activation tile on
//   multiply_float_tile<Weight, Width>(FloatPanel, x, x_stride, TileOut)

// What every panel of one multiply call shares.
struct Operands {
  const std::byte* acts;
  const float* x;
  size_t x_stride;
  int32_t tokens;
  int32_t terms;
  int32_t cols;
  size_t out_stride;
  FetchQueue* fetch;
};

// A group of activation tiles stays in the first-level cache while the panels of a strip pass by; the strip stays in the
// second while group after group does. Where panels are unpacked for each group, a larger one spares more than it costs to
// read activations from the second-level cache.
constexpr size_t kGroupBytes = 20480;
constexpr size_t kGroupBytesUnpacked = 40960;
constexpr size_t kStripBytes = 196608;

inline size_t group_bytes() {
  return kMaxUnpackedCols > 0 && unpacking_costs_products ? kGroupBytesUnpacked : kGroupBytes;
}

// Asks for the next lines of the queue. They go to the second-level cache: the first is full of activations.
inline void fetch_lines(FetchQueue& queue) {
  int32_t lines = queue.lines_per_tile;
  while (lines > 0 && queue.next != queue.end) {
    const std::byte* region = queue.base + *queue.next * queue.stride;
    for (; lines > 0 && queue.offset < queue.region_bytes; --lines, queue.offset += 64) {
      __builtin_prefetch(region + queue.offset, 0, 2);
    }
    if (queue.offset == queue.region_bytes) {
      ++queue.next;
      queue.offset = 0;
    }
  }
}

inline int32_t num_records(int32_t cols) { return num_padded_blocks(cols) / 2; }

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
  const int32_t shift = in.terms - 1;  // places to tokens
  const auto* acts =
      reinterpret_cast<const ActBlock*>(in.acts + first / kTileTokens * act_tile_bytes(in.cols, in.terms));
  multiply_tile<Source, N>(
      records, num_records(in.cols), acts, first % kTileTokens,
      {out + (first >> shift) * in.out_stride, in.out_stride, places >> shift, rows, static_cast<int16_t>(in.terms)});
  if (in.fetch != nullptr) fetch_lines(*in.fetch);
}

// Of the tiles of an unpacked panel, the whole ones; a narrower one at the end reads the panel as it is packed. Gives the
// place where it begins.
template <class Source>
OCTAVO_INLINE int32_t multiply_unpacked(const typename Source::Record* records, const Operands& in, Rows rows, float* out) {
  const int32_t places = in.tokens * in.terms;
  const auto* unpacked = Unpacked<Source>::unpack(records, num_records(in.cols));
  int32_t first = 0;
  for (; first + kWidestTile <= places; first += kWidestTile) {
    multiply_one_tile<Unpacked<Source>, kWidestTile>(unpacked, in, rows, out, first, kWidestTile);
  }
  return first;
}

template <class Source>
void multiply_panel(const std::byte* panel, const Operands& in, Rows rows, float* out) {
  const auto* records = reinterpret_cast<const typename Source::Record*>(panel);
  int32_t done = 0;
  if constexpr (kMaxUnpackedCols > 0) {
    if constexpr (Source::kUnpacks) {
      if (unpacking_costs_products && in.tokens * in.terms > kWidestTile && in.cols <= kMaxUnpackedCols) {
        done = multiply_unpacked<Source>(records, in, rows, out);
      }
    }
  }
  for_each_tile(done, in.tokens * in.terms, [&](auto width, int32_t first, int32_t places) {
    multiply_one_tile<Source, width.kPlaces>(records, in, rows, out, first, places);
  });
}

template <class Weight>
void multiply_float_panel(const std::byte* bytes, const Operands& in, Rows rows, float* out) {
  const FloatPanel<Weight> panel = {reinterpret_cast<const Weight*>(bytes), in.cols};
  for_each_tile(0, in.tokens, [&](auto width, int32_t first, int32_t tokens) {
    multiply_float_tile<Weight, width.kPlaces>(panel, in.x + first * in.x_stride, in.x_stride,
                                               {out + first * in.out_stride, in.out_stride, tokens, rows, 1});
  });
}

using MultiplyPanel = void (*)(const std::byte* panel, const Operands& in, Rows rows, float* out);

// The one place where a format of packed.h meets its kernels.
MultiplyPanel panel_kernel(WeightFormat format) {
  switch (format) {
    case WeightFormat::F32: return multiply_float_panel<float>;
    case WeightFormat::F16: return multiply_float_panel<uint16_t>;
    case WeightFormat::BF16: return multiply_float_panel<Bf16>;
    case WeightFormat::Q2_K: return multiply_panel<SourceQ2_K>;
    case WeightFormat::Q3_K: return multiply_panel<SourceQ3_K>;
    case WeightFormat::Q4_0: return multiply_panel<SourceQ4_0>;
    case WeightFormat::Q4_1:
    case WeightFormat::Q4_K: return multiply_panel<SourceQ4_1>;
    case WeightFormat::Q5_0: return multiply_panel<SourceQ5_0>;
    case WeightFormat::Q5_1:
    case WeightFormat::Q5_K: return multiply_panel<SourceQ5_1>;
    case WeightFormat::Q6_K: return multiply_panel<SourceQ6_K>;
    case WeightFormat::Q8_0: return multiply_panel<SourceQ8_0>;
    case WeightFormat::IQ4_NL:
    case WeightFormat::IQ4_XS: return multiply_panel<SourceIQ4>;
  }
  return nullptr;
}

// How many of something that takes `bytes` fit into `space`, at least one.
inline int32_t count_in(size_t space, size_t bytes) { return bytes < space ? static_cast<int32_t>(space / bytes) : 1; }

void multiply(const PackedMatrix& weights, const MultiplyInput& input, int32_t panel_begin, int32_t panel_end, float* out,
              size_t out_stride, FetchQueue* fetch) {
  const MultiplyPanel kernel = panel_kernel(weights.format);
  const int32_t terms = num_terms(input.precision);
  const int32_t tile_tokens = kTileTokens / terms;
  const size_t tile_bytes = act_tile_bytes(weights.cols, terms);
  const int32_t group = count_in(group_bytes(), tile_bytes) * tile_tokens, strip = count_in(kStripBytes, weights.panel_bytes);
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
      for (int32_t p = from; p < to; ++p) {
        const int32_t first_row = p * kPanelRows;
        const int32_t rows = weights.rows - first_row < kPanelRows ? weights.rows - first_row : kPanelRows;
        kernel(weights.data + p * weights.panel_bytes, in, first_rows(rows), out + t * out_stride + first_row);
      }
    }
  }
}
