// Included inside `namespace octavo::<isa> { namespace {` after the ISA's vocabulary: no include, no namespace here.
// The matrix product: panels, tiles of tokens, and which kernel a format gets. The vocabulary is linear_tile.h and
//
//   Rows, first_rows(count)       which rows of a panel are written: the first `count` of 16
//   kWidestTile, kNarrowestTile   tokens of the widest and of the narrowest tile: powers of two up to 8
//   Source<format>                how records are read; Source::Record
//   multiply_tile<Source, Width>(records, count, acts, lane, TileOut)   tokens from `lane` of an activation tile on
//   multiply_float_tile<Weight, Width>(FloatPanel, x, x_stride, TileOut)
//
// and where decoding a panel once for many tokens pays, for each such Source
//
//   Source::kUnpackTokens         from this many tokens on
//   Source::Unpacked              the Source of the decoded panel; Unpacked::unpack<Source>(records, count, out)
//   kScratchPerRecord             bytes of an Unpacked::Record, 0 if there are none

// What every panel of one multiply call shares.
struct Operands {
  const std::byte* acts;
  const float* x;
  size_t x_stride;
  int32_t tokens;
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
  static constexpr int kTokens = N;
};

template <int N, class Tile>
OCTAVO_INLINE void last_tile(int32_t first, int32_t tokens, Tile tile) {
  if constexpr (N > kNarrowestTile) {
    if (tokens <= N / 2) return last_tile<N / 2>(first, tokens, tile);
  }
  tile(Width<N>{}, first, tokens);
}

// Calls tile(Width, first token, tokens in the tile) for each tile. The last one takes the narrowest kernel that holds
// it; tokens of the padding are computed and dropped.
template <class Tile>
OCTAVO_INLINE void for_each_tile(int32_t tokens, Tile tile) {
  int32_t first = 0;
  for (; first + kWidestTile <= tokens; first += kWidestTile) tile(Width<kWidestTile>{}, first, kWidestTile);
  if (first < tokens) last_tile<kWidestTile>(first, tokens - first, tile);
}

template <class Source>
OCTAVO_INLINE void multiply_all_tiles(const std::byte* panel, const Operands& in, Rows rows, float* out) {
  const auto* records = reinterpret_cast<const typename Source::Record*>(panel);
  const int32_t count = num_records(in.cols);
  for_each_tile(in.tokens, [&](auto width, int32_t first, int32_t tokens) {
    const auto* acts = reinterpret_cast<const ActBlock*>(in.acts + first / kTileTokens * act_tile_bytes(in.cols));
    multiply_tile<Source, width.kTokens>(records, count, acts, first % kTileTokens,
                                         {out + first * in.out_stride, in.out_stride, tokens, rows});
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
    multiply_float_tile<Weight, width.kTokens>(panel, in.x + first * in.x_stride, in.x_stride,
                                               {out + first * in.out_stride, in.out_stride, tokens, rows});
  });
}

using MultiplyPanel = void (*)(const std::byte* panel, const Operands& in, Rows rows, float* out);

template <class Source>
MultiplyPanel quantised_kernel(int32_t tokens) {
  if constexpr (requires { typename Source::Unpacked::Record; }) {
    if (tokens >= Source::kUnpackTokens) return multiply_panel_unpacked<Source>;
  }
  return multiply_panel<Source>;
}

// The one place where a format of packed.h meets its kernels.
MultiplyPanel panel_kernel(WeightFormat format, int32_t tokens) {
  switch (format) {
    case WeightFormat::F32: return multiply_float_panel<float>;
    case WeightFormat::F16: return multiply_float_panel<uint16_t>;
    case WeightFormat::Q4_0: return quantised_kernel<SourceQ4_0>(tokens);
    case WeightFormat::Q4_1:
    case WeightFormat::Q4_K: return quantised_kernel<SourceQ4_1>(tokens);
    case WeightFormat::Q5_0: return quantised_kernel<SourceQ5_0>(tokens);
    case WeightFormat::Q6_K: return quantised_kernel<SourceQ6_K>(tokens);
    case WeightFormat::Q8_0: return quantised_kernel<SourceQ8_0>(tokens);
  }
  return nullptr;
}

void multiply(const PackedMatrix& weights, const std::byte* acts, const float* x, size_t x_stride, int32_t tokens,
              int32_t panel_begin, int32_t panel_end, float* out, size_t out_stride, std::byte* scratch,
              FetchQueue* fetch) {
  const MultiplyPanel kernel = panel_kernel(weights.format, tokens);
  const Operands in = {acts, x, x_stride, tokens, weights.cols, out_stride, scratch, fetch};
  for (int32_t p = panel_begin; p < panel_end; ++p) {
    const int32_t first_row = p * kPanelRows;
    const int32_t rows = weights.rows - first_row < kPanelRows ? weights.rows - first_row : kPanelRows;
    kernel(weights.data + p * weights.panel_bytes, in, first_rows(rows), out + first_row);
  }
}

size_t scratch_bytes(int32_t cols) { return static_cast<size_t>(num_records(cols)) * kScratchPerRecord; }
