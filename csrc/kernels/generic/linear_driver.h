// Included inside `namespace octavo::<isa> { namespace {` after the ISA's vocabulary: no include, no namespace here.
// The matrix product: panels, tiles, and which kernel a format gets. A tile is of places in the activations: one a token,
// two with Precision::kInt8x2. The vocabulary is linear_tile.h and
//
//   Rows, first_rows(count)       which rows of a panel are written: the first `count` of 16
//   kWidestTile, kNarrowestTile   places of the widest and of the narrowest tile: powers of two up to 8
//   Source<format>                how records are read; Source::Record
//   multiply_tile<Source, Width>(records, count, acts, lane, TileOut)   places from `lane` of an activation tile on
//   multiply_float_tile<Weight, Width>(FloatPanel, x, x_stride, TileOut)
//
// and where decoding a panel once for many tokens pays, for each such Source
//
//   Source::kUnpackTokens         from this many places on
//   Source::Unpacked              the Source of the decoded panel; Unpacked::unpack<Source>(records, count, out)
//   kScratchPerRecord             bytes of an Unpacked::Record, 0 if there are none

// What every panel of one multiply call shares.
struct Operands {
  const std::byte* acts;
  const float* x;
  size_t x_stride;
  int32_t tokens;
  int32_t terms;
  int32_t cols;
  size_t out_stride;
  std::byte* scratch;
  FetchQueue* fetch;
};

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

// Calls tile(Width, first place, places in the tile) for each tile. The last one takes the narrowest kernel that holds
// it; places of the padding are computed and dropped.
template <class Tile>
OCTAVO_INLINE void for_each_tile(int32_t places, Tile tile) {
  int32_t first = 0;
  for (; first + kWidestTile <= places; first += kWidestTile) tile(Width<kWidestTile>{}, first, kWidestTile);
  if (first < places) last_tile<kWidestTile>(first, places - first, tile);
}

template <class Source>
OCTAVO_INLINE void multiply_all_tiles(const std::byte* panel, const Operands& in, Rows rows, float* out) {
  const auto* records = reinterpret_cast<const typename Source::Record*>(panel);
  const int32_t count = num_records(in.cols);
  const size_t tile_bytes = act_tile_bytes(in.cols, in.terms);
  const int32_t shift = in.terms - 1;  // places to tokens
  for_each_tile(in.tokens << shift, [&](auto width, int32_t first, int32_t places) {
    const auto* acts = reinterpret_cast<const ActBlock*>(in.acts + first / kTileTokens * tile_bytes);
    multiply_tile<Source, width.kPlaces>(
        records, count, acts, first % kTileTokens,
        {out + (first >> shift) * in.out_stride, in.out_stride, places >> shift, rows, static_cast<int16_t>(in.terms)});
    if (in.fetch != nullptr) fetch_lines(*in.fetch);
  });
}

template <class Source>
void multiply_panel(const std::byte* panel, const Operands& in, Rows rows, float* out) {
  multiply_all_tiles<Source>(panel, in, rows, out);
}

template <class Source>
void multiply_panel_unpacked(const std::byte* panel, const Operands& in, Rows rows, float* out) {
  using Unpacked = typename Source::Unpacked;
  const auto* records = reinterpret_cast<const typename Source::Record*>(panel);
  auto* unpacked = reinterpret_cast<typename Unpacked::Record*>(in.scratch);
  Unpacked::template unpack<Source>(records, num_records(in.cols), unpacked);
  multiply_all_tiles<Unpacked>(in.scratch, in, rows, out);
}

template <class Weight>
void multiply_float_panel(const std::byte* bytes, const Operands& in, Rows rows, float* out) {
  const FloatPanel<Weight> panel = {reinterpret_cast<const Weight*>(bytes), in.cols};
  for_each_tile(in.tokens, [&](auto width, int32_t first, int32_t tokens) {
    multiply_float_tile<Weight, width.kPlaces>(panel, in.x + first * in.x_stride, in.x_stride,
                                               {out + first * in.out_stride, in.out_stride, tokens, rows, 1});
  });
}

using MultiplyPanel = void (*)(const std::byte* panel, const Operands& in, Rows rows, float* out);

template <class Source>
MultiplyPanel quantised_kernel(int32_t places) {
  if constexpr (requires { typename Source::Unpacked::Record; }) {
    if (places >= Source::kUnpackTokens) return multiply_panel_unpacked<Source>;
  }
  return multiply_panel<Source>;
}

// The one place where a format of packed.h meets its kernels.
MultiplyPanel panel_kernel(WeightFormat format, int32_t places) {
  switch (format) {
    case WeightFormat::F32: return multiply_float_panel<float>;
    case WeightFormat::F16: return multiply_float_panel<uint16_t>;
    case WeightFormat::BF16: return multiply_float_panel<Bf16>;
    case WeightFormat::Q2_K: return quantised_kernel<SourceQ2_K>(places);
    case WeightFormat::Q3_K: return quantised_kernel<SourceQ3_K>(places);
    case WeightFormat::Q4_0: return quantised_kernel<SourceQ4_0>(places);
    case WeightFormat::Q4_1:
    case WeightFormat::Q4_K: return quantised_kernel<SourceQ4_1>(places);
    case WeightFormat::Q5_0: return quantised_kernel<SourceQ5_0>(places);
    case WeightFormat::Q5_1:
    case WeightFormat::Q5_K: return quantised_kernel<SourceQ5_1>(places);
    case WeightFormat::Q6_K: return quantised_kernel<SourceQ6_K>(places);
    case WeightFormat::Q8_0: return quantised_kernel<SourceQ8_0>(places);
    case WeightFormat::IQ4_NL:
    case WeightFormat::IQ4_XS: return quantised_kernel<SourceIQ4>(places);
  }
  return nullptr;
}

void multiply(const PackedMatrix& weights, const MultiplyInput& input, int32_t panel_begin, int32_t panel_end, float* out,
              size_t out_stride, std::byte* scratch, FetchQueue* fetch) {
  const int32_t terms = num_terms(input.precision);
  const MultiplyPanel kernel = panel_kernel(weights.format, input.tokens * terms);
  const Operands in = {input.acts, input.x, input.x_stride, input.tokens, terms, weights.cols, out_stride, scratch, fetch};
  for (int32_t p = panel_begin; p < panel_end; ++p) {
    const int32_t first_row = p * kPanelRows;
    const int32_t rows = weights.rows - first_row < kPanelRows ? weights.rows - first_row : kPanelRows;
    kernel(weights.data + p * weights.panel_bytes, in, first_rows(rows), out + first_row);
  }
}

size_t scratch_bytes(int32_t cols) { return static_cast<size_t>(num_records(cols)) * kScratchPerRecord; }
