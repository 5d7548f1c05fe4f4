// Included inside `namespace octavo::<isa> { namespace {` after step_kv.h: no include, no namespace here.
// Paged attention of one kv head over one context tile of 128 positions, for the query rows that share the head.
//
//   scores[row][position] = q[row] . K       one lane per position: a K block is [head_dim][16 positions]
//   partial[row] = max, sum of exp(score - max), accumulator = sum of exp(score - max) * V[position]
//
// Every score has one accumulator that runs over the channels in order (of quantised keys: one a group, whose sums the
// groups' factors multiply in order), every output channel one that runs over the row's visible positions in order:
// sharing K and V loads between rows changes no bit. Positions a row may not see are
// never multiplied: their memory may hold NaN. Codes are read as they are stored; a value's factors are applied in
// registers, to all rows at once.

// Many rows share what they load and widen; a few go in one group of any size up to kFewRows.
constexpr int32_t kFewRows = kVecRegisters - 2 < 6 ? kVecRegisters - 2 : 6;
constexpr int32_t kRowsAtOnce = kVecRegisters >= 32 ? 2 * kFewRows : kFewRows;
constexpr int32_t kBlocksPerTile = kContextTile / kBlockSize;

// How many vectors kRows rows are multiplied with at once: `most` or less, a power of two. In registers are the sums,
// the factors of the shorter side and one of the other; a tile that spills runs at half the speed.
template <int kRows>
constexpr int vectors_at_once(int most) {
  const auto in_use = [](int vectors) { return kRows * vectors + (kRows < vectors ? kRows : vectors) + 1; };
  while (most > 1 && in_use(most) > kVecRegisters) most /= 2;
  return most;
}
static_assert(kRowsAtOnce + 2 <= kVecRegisters);

// The part of a context tile that one row sees, in positions relative to the tile's first.
struct Span {
  int32_t begin, end;
};

struct TileBlocks {
  const std::byte* keys[kBlocksPerTile];
  const std::byte* values[kBlocksPerTile];
  const std::byte* ahead[kBlocksPerTile];  // keys that are read next
  int32_t num_ahead;
  int32_t first, last;             // blocks in use: [first, last)
  size_t key_bytes, value_bytes;  // of a head in a block
};

// Query rows that attend together; of keys with a minimum the sum over each group's channels.
struct Queries {
  const float* rows[kRowsAtOnce];
  float sums[kRowsAtOnce][kMaxHeadDim / kKVGroup];
};

// Runs of memory that are read later: asked for a few lines at a time, at the pace of the work that goes on meanwhile.
// More requests than the core tracks would stall it. Into the second-level cache, as a tile fills the first.
class RunsAhead {
 public:
  RunsAhead(const std::byte* const* runs, int32_t num_runs, size_t run_bytes)
      : next_(runs), end_(runs + num_runs), run_bytes_(run_bytes) {}

  // Lines a step to have all of them after `steps` steps.
  int32_t lines_per_step(int32_t steps) const {
    const int32_t run_lines = static_cast<int32_t>((run_bytes_ + kKVLine - 1) / kKVLine);
    const int32_t lines = static_cast<int32_t>(end_ - next_) * run_lines;
    return (lines + steps - 1) / steps;
  }
  void fetch(int32_t lines) {
    for (; lines > 0 && next_ != end_; --lines) {
      prefetch_far(*next_ + offset_);
      offset_ += kKVLine;
      if (offset_ < run_bytes_) continue;
      offset_ = 0;
      ++next_;
    }
  }

 private:
  const std::byte* const* next_;
  const std::byte* const* end_;
  size_t run_bytes_;
  size_t offset_ = 0;
};

// Scores of kRows rows against the kBlocks blocks from b on, channels [begin, end): all of them, or a group, in order.
// scores: rows 128 apart. fetched: bytes of the same blocks' values asked for so far.
template <KVCode kKeys, int kRows, int kBlocks>
inline void score_channels(const Queries& q, const AttentionShape& shape, const TileBlocks& blocks, int32_t b0,
                           int32_t begin, int32_t end, size_t& fetched, float* scores) {
  constexpr int32_t kChannelsPerLine = static_cast<int32_t>(16 * kKVLine / codes_bytes(kKeys, 16));
  const std::byte* const* keys = blocks.keys + b0;
  Vec sums[kRows][kBlocks];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int b = 0; b < kBlocks; ++b) sums[r][b] = zero();
  }
  const auto multiply = [&]<int kOdd>(int32_t d) {
    Vec k[kBlocks];
#pragma GCC unroll 16
    for (int b = 0; b < kBlocks; ++b) k[b] = load_keys<kKeys, kOdd>(keys[b], d);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Vec channel = splat(q.rows[r][d + kOdd]);
#pragma GCC unroll 16
      for (int b = 0; b < kBlocks; ++b) sums[r][b] = fma(channel, k[b], sums[r][b]);
    }
  };
  constexpr int32_t kStep = kKeys == KVCode::kUint4 ? 2 : 1;
  for (int32_t d = begin; d < end; d += kStep) {
    if (d % kChannelsPerLine == 0 && fetched < blocks.value_bytes) {
#pragma GCC unroll 16
      for (int b = 0; b < kBlocks; ++b) prefetch_far(blocks.values[b0 + b] + fetched);
      fetched += kKVLine;
    }
    multiply.template operator()<0>(d);
    if constexpr (kStep == 2) {
      if (d + 1 < end) multiply.template operator()<1>(d);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int b = 0; b < kBlocks; ++b) {
      float* out = scores + r * kContextTile + b * kBlockSize;
      Vec s = sums[r][b];
      if constexpr (has_scale(kKeys)) {
        const int32_t group = begin / kKVGroup;
        Vec total = group == 0 ? zero() : load(out);
        if constexpr (has_minimum(kKeys)) {
          total = fma(splat(q.sums[r][group]), load_minima<kKeys>(keys[b], shape.head_dim, group), total);
        }
        s = fma(s, load_scales<kKeys>(keys[b], shape.head_dim, group), total);
      }
      if (end == shape.head_dim) {
        s = mul(s, splat(shape.scale));
        if (shape.softcap != 0.0f) s = capped(s, shape.softcap);
      }
      store(out, s);
    }
  }
}

template <KVCode kKeys, int kRows, int kBlocks>
inline void score_blocks(const Queries& q, const AttentionShape& shape, const TileBlocks& blocks, int32_t b0,
                         bool with_prefetch, float* scores) {
  size_t fetched = with_prefetch ? 0 : blocks.value_bytes;
  if constexpr (has_scale(kKeys)) {
    for (int32_t begin = 0; begin < shape.head_dim; begin += kKVGroup) {
      const int32_t end = shape.head_dim - begin < kKVGroup ? shape.head_dim : begin + kKVGroup;
      score_channels<kKeys, kRows, kBlocks>(q, shape, blocks, b0, begin, end, fetched, scores);
    }
    for (; fetched < blocks.value_bytes; fetched += kKVLine) {  // factors
      for (int b = 0; b < kBlocks; ++b) prefetch_far(blocks.values[b0 + b] + fetched);
    }
  } else {
    score_channels<kKeys, kRows, kBlocks>(q, shape, blocks, b0, 0, shape.head_dim, fetched, scores);
  }
}

// The blocks from b on, as many at once as fit, then the rest in smaller numbers.
template <KVCode kKeys, int kRows, int kAtOnce>
inline void score_from(int32_t b, const Queries& q, const AttentionShape& shape, const TileBlocks& blocks,
                       bool with_prefetch, float* scores) {
  for (; b + kAtOnce <= blocks.last; b += kAtOnce) {
    score_blocks<kKeys, kRows, kAtOnce>(q, shape, blocks, b, with_prefetch, scores + b * kBlockSize);
  }
  if constexpr (kAtOnce > 1) score_from<kKeys, kRows, kAtOnce / 2>(b, q, shape, blocks, with_prefetch, scores);
}

// While keys are read, the values of the same blocks are fetched; while values are read, the keys of the next tile.
template <KVCode kKeys, int kRows>
inline void score_tile(const Queries& q, const AttentionShape& shape, const TileBlocks& blocks, bool with_prefetch,
                       float* scores) {
  score_from<kKeys, kRows, vectors_at_once<kRows>(4)>(blocks.first, q, shape, blocks, with_prefetch, scores);
}

// Turns one row's scores into exp(score - max), 0 outside its span.
inline void weigh_row(float* scores, Span span, float* partial) {
  const Vec bottom = splat(kMinusInfinity);
  const int32_t first = span.begin / kBlockSize, last = (span.end + kBlockSize - 1) / kBlockSize;
  Vec highest = bottom;
  for (int32_t b = first; b < last; ++b) {
    const int32_t from = span.begin - b * kBlockSize, to = span.end - b * kBlockSize;
    Mask seen = to >= kBlockSize ? 0xffffu : lane_mask(to);
    if (from > 0) seen &= ~lane_mask(from);
    const Vec s = select(seen, load(scores + b * kBlockSize), bottom);
    store(scores + b * kBlockSize, s);
    highest = max(s, highest);
  }
  partial[0] = reduce_max(highest);
  const Vec shift = splat(partial[0]);
  Vec sum = zero();
  for (int32_t b = first; b < last; ++b) {
    const Vec weight = exponential(sub(load(scores + b * kBlockSize), shift));
    store(scores + b * kBlockSize, weight);
    sum = add(sum, weight);
  }
  partial[1] = reduce_add(sum);
}

// accumulator[row][channel .. + 16 kChunks) += weights[row][t] * V[t] for t in span, in order. tail: lanes of a chunk.
// The channels are of one group.
template <KVCode kValues, int kRows, int kChunks>
inline void accumulate_channels(const float* weights, const TileBlocks& blocks, RunsAhead& ahead, int32_t lines_ahead,
                                Span span, int32_t head_dim, int32_t channel, int32_t tail, float* accumulators,
                                size_t stride) {
  Vec sums[kRows][kChunks];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int c = 0; c < kChunks; ++c) sums[r][c] = load(accumulators + r * stride + channel + c * 16);
  }
  const size_t row_size = row_bytes(kValues, head_dim);
  for (int32_t t = span.begin; t < span.end;) {
    const int32_t block = t / kBlockSize;
    const int32_t end = span.end < (block + 1) * kBlockSize ? span.end : (block + 1) * kBlockSize;
    const std::byte* side = blocks.values[block];
    const std::byte* row = side + static_cast<size_t>(t % kBlockSize) * row_size;
    float scales[kBlockSize], minima[kBlockSize];
    if constexpr (has_scale(kValues)) store(scales, load_scales<kValues>(side, head_dim, channel / kKVGroup));
    if constexpr (has_minimum(kValues)) store(minima, load_minima<kValues>(side, head_dim, channel / kKVGroup));
    for (; t < end; ++t, row += row_size) {
      ahead.fetch(lines_ahead);
      Vec chunk[kChunks];
#pragma GCC unroll 16
      for (int c = 0; c < kChunks; ++c) {
        chunk[c] = load_values<kValues>(row, channel + c * 16, kChunks == 1 ? tail : 16);
        if constexpr (has_minimum(kValues)) {
          chunk[c] = fma(chunk[c], splat(scales[t % kBlockSize]), splat(minima[t % kBlockSize]));
        } else if constexpr (has_scale(kValues)) {
          chunk[c] = mul(chunk[c], splat(scales[t % kBlockSize]));
        }
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const Vec weight = splat(weights[r * kContextTile + t]);
#pragma GCC unroll 16
        for (int c = 0; c < kChunks; ++c) sums[r][c] = fma(weight, chunk[c], sums[r][c]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int c = 0; c < kChunks; ++c) store(accumulators + r * stride + channel + c * 16, sums[r][c]);
  }
}

template <KVCode kValues, int kRows>
inline void accumulate(const float* weights, const TileBlocks& blocks, bool with_prefetch, Span span, int32_t head_dim,
                       float* accumulators, size_t stride) {
  if (span.begin >= span.end) return;
  constexpr int kChunks = vectors_at_once<kRows>(4);
  static_assert(kKVGroup % (16 * kChunks) == 0);
  RunsAhead ahead(blocks.ahead, with_prefetch ? blocks.num_ahead : 0, blocks.key_bytes);
  const int32_t passes = (head_dim + 16 * kChunks - 1) / (16 * kChunks);
  const int32_t lines_ahead = ahead.lines_per_step(passes * (span.end - span.begin));
  int32_t channel = 0;
  for (; channel + 16 * kChunks <= head_dim; channel += 16 * kChunks) {
    accumulate_channels<kValues, kRows, kChunks>(weights, blocks, ahead, lines_ahead, span, head_dim, channel, 16,
                                                 accumulators, stride);
  }
  for (; channel < head_dim; channel += 16) {
    const int32_t tail = head_dim - channel < 16 ? head_dim - channel : 16;
    accumulate_channels<kValues, kRows, 1>(weights, blocks, ahead, lines_ahead, span, head_dim, channel, tail,
                                           accumulators, stride);
  }
}

// Rows [0, kRows) of a group: scores, weights, sums over V.
template <KVCode kKeys, KVCode kValues, int kRows>
inline void attend_rows(const Queries& q, const Span* spans, const AttentionShape& shape, const TileBlocks& blocks,
                        bool with_prefetch, float* partials, float* scores) {
  score_tile<kKeys, kRows>(q, shape, blocks, with_prefetch, scores);
  const size_t stride = partial_floats(shape.head_dim);
  Span shared = {0, kContextTile};
  for (int r = 0; r < kRows; ++r) {
    float* partial = partials + r * stride;
    for (size_t i = kPartialHeader; i < stride; i += 16) store(partial + i, zero());
    partial[0] = kMinusInfinity;
    partial[1] = 0.0f;
    if (spans[r].begin < spans[r].end) weigh_row(scores + r * kContextTile, spans[r], partial);
    shared.begin = spans[r].begin > shared.begin ? spans[r].begin : shared.begin;
    shared.end = spans[r].end < shared.end ? spans[r].end : shared.end;
  }
  if (shared.begin > shared.end) shared.begin = shared.end = kContextTile;
  // Each row takes its own positions before the shared run, the run with the others, then its own after it.
  float* accumulators = partials + kPartialHeader;
  for (int r = 0; r < kRows; ++r) {
    const Span own = {spans[r].begin, spans[r].end < shared.begin ? spans[r].end : shared.begin};
    accumulate<kValues, 1>(scores + r * kContextTile, blocks, false, own, shape.head_dim, accumulators + r * stride,
                           stride);
  }
  accumulate<kValues, kRows>(scores, blocks, with_prefetch, shared, shape.head_dim, accumulators, stride);
  for (int r = 0; r < kRows; ++r) {
    const Span own = {spans[r].begin > shared.end ? spans[r].begin : shared.end, spans[r].end};
    accumulate<kValues, 1>(scores + r * kContextTile, blocks, false, own, shape.head_dim, accumulators + r * stride,
                           stride);
  }
}

// num_rows: kRowsAtOnce, or kFewRows at most.
template <KVCode kKeys, KVCode kValues, int kRows = kRowsAtOnce>
inline void attend_some(int32_t num_rows, const Queries& q, const Span* spans, const AttentionShape& shape,
                        const TileBlocks& blocks, bool with_prefetch, float* partials, float* scores) {
  if (num_rows == kRows) {
    attend_rows<kKeys, kValues, kRows>(q, spans, shape, blocks, with_prefetch, partials, scores);
  } else if constexpr (kRows > 1) {
    constexpr int kFewer = kRows > kFewRows ? kFewRows : kRows - 1;
    attend_some<kKeys, kValues, kFewer>(num_rows, q, spans, shape, blocks, with_prefetch, partials, scores);
  }
}

template <KVCode kKeys, KVCode kValues>
inline TileBlocks find_blocks(const KVLayer& layer, const QueryTile& tile, int32_t kv_head, int32_t context,
                              const KeysAhead& ahead, Span seen) {
  TileBlocks blocks;
  blocks.key_bytes = side_bytes(kKeys, layer.head_dim);
  blocks.value_bytes = side_bytes(kValues, layer.head_dim);
  blocks.first = seen.begin / kBlockSize;
  blocks.last = (seen.end + kBlockSize - 1) / kBlockSize;
  for (int32_t b = blocks.first; b < blocks.last; ++b) {
    blocks.keys[b] = head_of<kKeys, kValues>(layer, tile.block_table[context * kBlocksPerTile + b], kv_head);
    blocks.values[b] = blocks.keys[b] + blocks.key_bytes;
  }
  blocks.num_ahead = ahead.num_blocks;
  for (int32_t b = 0; b < ahead.num_blocks; ++b) {
    blocks.ahead[b] = head_of<kKeys, kValues>(layer, ahead.blocks[b], ahead.kv_head);
  }
  return blocks;
}

// Keys with a minimum are rotated: row r of the queries too, into `rotated`.
inline void rotate_query(int32_t r, int32_t head_dim, float* rotated, Queries& q) {
  rotate(q.rows[r], head_dim, rotated);
  q.rows[r] = rotated;
  for (int32_t first = 0; first < head_dim; first += kKVGroup) {
    float sum = 0.0f;
    for (int32_t i = first; i < head_dim && i < first + kKVGroup; ++i) sum += rotated[i];
    q.sums[r][first / kKVGroup] = sum;
  }
}

template <KVCode kKeys, KVCode kValues>
inline void attend_typed(const KVLayer& layer, const AttentionShape& shape, const QueryTile& tile, int32_t kv_head,
                         int32_t context, const KeysAhead& ahead, float* partials, float* scratch) {
  const int32_t group = shape.num_heads / shape.num_kv_heads, num_rows = tile.num_tokens * group;
  const int32_t origin = context * kContextTile;
  const auto span_of = [&](int32_t token) {
    const int32_t position = tile.first_position + token;
    const int32_t lowest = shape.window > 0 && position >= shape.window ? position - shape.window + 1 : 0;
    Span span = {lowest - origin, position + 1 - origin};
    if (span.begin < 0) span.begin = 0;
    if (span.end > kContextTile) span.end = kContextTile;
    if (span.begin > span.end) span.begin = span.end = 0;
    return span;
  };
  // Later tokens see later positions: together they see from the first one's begin to the last one's end.
  Span seen = {kContextTile, 0};
  for (int32_t t = 0; t < tile.num_tokens; ++t) {
    const Span span = span_of(t);
    if (span.begin == span.end) continue;
    if (span.begin < seen.begin) seen.begin = span.begin;
    if (span.end > seen.end) seen.end = span.end;
  }
  if (seen.begin >= seen.end) seen = {0, 0};
  const TileBlocks blocks = find_blocks<kKeys, kValues>(layer, tile, kv_head, context, ahead, seen);
  const size_t stride = partial_floats(shape.head_dim);
  for (int32_t row = 0, count; row < num_rows; row += count) {
    const int32_t left = num_rows - row;
    count = left >= kRowsAtOnce ? kRowsAtOnce : left < kFewRows ? left : kFewRows;
    Queries q;
    float rotated[has_minimum(kKeys) ? kRowsAtOnce : 1][has_minimum(kKeys) ? kMaxHeadDim : 1];
    Span spans[kRowsAtOnce];
    for (int32_t r = 0; r < count; ++r) {
      const int32_t token = (row + r) / group, head = kv_head * group + (row + r) % group;
      q.rows[r] = tile.q + token * tile.q_stride + static_cast<size_t>(head) * shape.head_dim;
      if constexpr (has_minimum(kKeys)) rotate_query(r, shape.head_dim, rotated[r], q);
      spans[r] = span_of(token);
    }
    const bool with_prefetch = tile.num_tokens == 1 && row == 0;  // prefill finds its blocks in the cache
    attend_some<kKeys, kValues>(count, q, spans, shape, blocks, with_prefetch, partials + row * stride,
                                scratch + row * kContextTile);
  }
}

void attend(const KVLayer& layer, const AttentionShape& shape, const QueryTile& tile, int32_t kv_head, int32_t context,
            const KeysAhead& ahead, float* partials, float* scratch) {
  with_codes(layer.type, [&]<KVCode kKeys, KVCode kValues>() {
    attend_typed<kKeys, kValues>(layer, shape, tile, kv_head, context, ahead, partials, scratch);
  });
}

// state' = state * exp(max - max') + partial * exp(partial max - max'), the same for the first tile of a sequence.
void merge(const float* partials, int32_t num_rows, int32_t head_dim, float* states) {
  const size_t stride = partial_floats(head_dim);
  for (int32_t r = 0; r < num_rows; ++r, partials += stride, states += stride) {
    if (partials[1] == 0.0f) continue;  // the row sees nothing here
    const Vec highest = max(splat(partials[0]), splat(states[0]));
    const Vec keep = exponential(sub(splat(states[0]), highest));
    const Vec take = exponential(sub(splat(partials[0]), highest));
    float sums[16];
    store(sums, fma(splat(partials[1]), take, mul(splat(states[1]), keep)));
    float maxima[16];
    store(maxima, highest);
    states[0] = maxima[0];
    states[1] = sums[0];
    for (size_t i = kPartialHeader; i < stride; i += 16) {
      store(states + i, fma(load(partials + i), take, mul(load(states + i), keep)));
    }
  }
}

void finish(const float* state, int32_t head_dim, float* out) {
  const Vec sum = splat(state[1]);
  const float* accumulator = state + kPartialHeader;
  for_lanes(head_dim, [&](int32_t i, int32_t n) { store_lanes(out + i, div(load(accumulator + i), sum), n); });
}
