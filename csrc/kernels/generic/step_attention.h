// Included inside `namespace octavo::<isa> { namespace {` after step_math.h: no include, no namespace here.
// Paged attention of one kv head over one context tile of 128 positions, for the query rows that share the head.
//
//   scores[row][position] = q[row] . K       one lane per position: a K block is [head_dim][16 positions]
//   partial[row] = max, sum of exp(score - max), accumulator = sum of exp(score - max) * V[position]
//
// Every score has one accumulator that runs over the channels in order, every output channel one that runs over the
// row's visible positions in order: sharing K and V loads between rows changes no bit. Positions a row may not see are
// never multiplied: their memory may hold NaN.

constexpr int32_t kRowsAtOnce = 6;
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

template <typename Element>
struct TileBlocks {
  const Element* keys[kBlocksPerTile];
  const Element* values[kBlocksPerTile];
  const Element* ahead[kBlocksPerTile];  // keys that are read next
  int32_t num_ahead;
  int32_t first, last;  // blocks in use: [first, last)
};

// Elements of a cache line.
template <typename Element>
constexpr int32_t kLineElements = 64 / sizeof(Element);

// Runs of memory, half a block each, that are read later: asked for a few lines at a time, at the pace of the work that
// goes on meanwhile. More requests than the core tracks would stall it. Into the second-level cache, as a tile fills
// the first.
template <typename Element>
class RunsAhead {
 public:
  RunsAhead(const Element* const* runs, int32_t num_runs, int32_t run_elements)
      : next_(runs), end_(runs + num_runs), run_elements_(run_elements) {}

  // Lines a step to have all of them after `steps` steps.
  int32_t lines_per_step(int32_t steps) const {
    const int32_t lines = static_cast<int32_t>(end_ - next_) * (run_elements_ / kLineElements<Element>);
    return (lines + steps - 1) / steps;
  }
  void fetch(int32_t lines) {
    for (; lines > 0 && next_ != end_; --lines) {
      prefetch_far(*next_ + offset_);
      offset_ += kLineElements<Element>;
      if (offset_ < run_elements_) continue;
      offset_ = 0;
      ++next_;
    }
  }

 private:
  const Element* const* next_;
  const Element* const* end_;
  int32_t run_elements_;
  int32_t offset_ = 0;
};

// Scores of kRows rows against kBlocks blocks. q: one pointer per row; scores: rows 128 apart; values: of the same
// blocks, fetched meanwhile, or null.
template <typename Element, int kRows, int kBlocks>
inline void score_blocks(const float* const* q, const AttentionShape& shape, const Element* const* keys,
                         const Element* const* values, float* scores) {
  constexpr int32_t kChannelsPerLine = kLineElements<Element> / kBlockSize;
  Vec sums[kRows][kBlocks];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) sums[r][b] = zero();
  }
  for (int32_t d = 0; d < shape.head_dim; ++d) {
    Vec k[kBlocks];
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) k[b] = load_kv(keys[b] + d * kBlockSize);
    if (values != nullptr && d % kChannelsPerLine == 0) {
#pragma GCC unroll 8
      for (int b = 0; b < kBlocks; ++b) prefetch_far(values[b] + d * kBlockSize);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec channel = splat(q[r][d]);
#pragma GCC unroll 8
      for (int b = 0; b < kBlocks; ++b) sums[r][b] = fma(channel, k[b], sums[r][b]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) {
      Vec s = mul(sums[r][b], splat(shape.scale));
      if (shape.softcap != 0.0f) s = capped(s, shape.softcap);
      store(scores + r * kContextTile + b * kBlockSize, s);
    }
  }
}

// The blocks from b on, as many at once as fit, then the rest in smaller numbers.
template <typename Element, int kRows, int kAtOnce>
inline void score_from(int32_t b, const float* const* q, const AttentionShape& shape, const TileBlocks<Element>& blocks,
                       bool with_prefetch, float* scores) {
  for (; b + kAtOnce <= blocks.last; b += kAtOnce) {
    score_blocks<Element, kRows, kAtOnce>(q, shape, blocks.keys + b, with_prefetch ? blocks.values + b : nullptr,
                                          scores + b * kBlockSize);
  }
  if constexpr (kAtOnce > 1) score_from<Element, kRows, kAtOnce / 2>(b, q, shape, blocks, with_prefetch, scores);
}

// While keys are read, the values of the same blocks are fetched; while values are read, the keys of the next tile.
template <typename Element, int kRows>
inline void score_tile(const float* const* q, const AttentionShape& shape, const TileBlocks<Element>& blocks,
                       bool with_prefetch, float* scores) {
  score_from<Element, kRows, vectors_at_once<kRows>(4)>(blocks.first, q, shape, blocks, with_prefetch, scores);
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
template <typename Element, int kRows, int kChunks>
inline void accumulate_channels(const float* weights, const TileBlocks<Element>& blocks, RunsAhead<Element>& ahead,
                                int32_t lines_ahead, Span span, int32_t head_dim, int32_t channel, int32_t tail,
                                float* accumulators, size_t stride) {
  Vec sums[kRows][kChunks];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kChunks; ++c) sums[r][c] = load(accumulators + r * stride + channel + c * 16);
  }
  for (int32_t t = span.begin; t < span.end;) {
    const int32_t block = t / kBlockSize;
    const int32_t end = span.end < (block + 1) * kBlockSize ? span.end : (block + 1) * kBlockSize;
    const Element* v = blocks.values[block] + static_cast<size_t>(t % kBlockSize) * head_dim + channel;
    for (; t < end; ++t, v += head_dim) {
      ahead.fetch(lines_ahead);
      Vec chunk[kChunks];
      if (kChunks == 1 && tail != 16) {
        chunk[0] = load_kv_part(v, tail);
      } else {
#pragma GCC unroll 8
        for (int c = 0; c < kChunks; ++c) chunk[c] = load_kv(v + c * 16);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Vec weight = splat(weights[r * kContextTile + t]);
#pragma GCC unroll 8
        for (int c = 0; c < kChunks; ++c) sums[r][c] = fma(weight, chunk[c], sums[r][c]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kChunks; ++c) store(accumulators + r * stride + channel + c * 16, sums[r][c]);
  }
}

template <typename Element, int kRows>
inline void accumulate(const float* weights, const TileBlocks<Element>& blocks, bool with_prefetch, Span span,
                       int32_t head_dim, float* accumulators, size_t stride) {
  if (span.begin >= span.end) return;
  constexpr int kChunks = vectors_at_once<kRows>(4);
  RunsAhead<Element> ahead(blocks.ahead, with_prefetch ? blocks.num_ahead : 0, head_dim * kBlockSize);
  const int32_t passes = (head_dim + 16 * kChunks - 1) / (16 * kChunks);
  const int32_t lines_ahead = ahead.lines_per_step(passes * (span.end - span.begin));
  int32_t channel = 0;
  for (; channel + 16 * kChunks <= head_dim; channel += 16 * kChunks) {
    accumulate_channels<Element, kRows, kChunks>(weights, blocks, ahead, lines_ahead, span, head_dim, channel, 16,
                                                 accumulators, stride);
  }
  for (; channel < head_dim; channel += 16) {
    const int32_t tail = head_dim - channel < 16 ? head_dim - channel : 16;
    accumulate_channels<Element, kRows, 1>(weights, blocks, ahead, lines_ahead, span, head_dim, channel, tail,
                                           accumulators, stride);
  }
}

// Rows [0, kRows) of a group: scores, weights, sums over V.
template <typename Element, int kRows>
inline void attend_rows(const float* const* q, const Span* spans, const AttentionShape& shape,
                        const TileBlocks<Element>& blocks, bool with_prefetch, float* partials, float* scores) {
  score_tile<Element, kRows>(q, shape, blocks, with_prefetch, scores);
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
    accumulate<Element, 1>(scores + r * kContextTile, blocks, false, own, shape.head_dim, accumulators + r * stride,
                           stride);
  }
  accumulate<Element, kRows>(scores, blocks, with_prefetch, shared, shape.head_dim, accumulators, stride);
  for (int r = 0; r < kRows; ++r) {
    const Span own = {spans[r].begin > shared.end ? spans[r].begin : shared.end, spans[r].end};
    accumulate<Element, 1>(scores + r * kContextTile, blocks, false, own, shape.head_dim, accumulators + r * stride,
                           stride);
  }
}

template <typename Element, int kRows = kRowsAtOnce>
inline void attend_some(int32_t num_rows, const float* const* q, const Span* spans, const AttentionShape& shape,
                        const TileBlocks<Element>& blocks, bool with_prefetch, float* partials, float* scores) {
  if (num_rows == kRows) {
    attend_rows<Element, kRows>(q, spans, shape, blocks, with_prefetch, partials, scores);
  } else if constexpr (kRows > 1) {
    attend_some<Element, kRows - 1>(num_rows, q, spans, shape, blocks, with_prefetch, partials, scores);
  }
}

// Keys of one head in a block; its values follow them.
template <typename Element>
inline Element* head_keys(const KVLayer& layer, int32_t block, int32_t head) {
  const size_t head_elements = static_cast<size_t>(layer.head_dim) * kBlockSize;
  std::byte* base = layer.pool + static_cast<size_t>(block) * layer.block_bytes + layer.layer_offset;
  return reinterpret_cast<Element*>(base) + 2 * head * head_elements;
}

template <typename Element>
inline TileBlocks<Element> find_blocks(const KVLayer& layer, const QueryTile& tile, int32_t kv_head, int32_t context,
                                       const KeysAhead& ahead, Span seen) {
  const size_t head_elements = static_cast<size_t>(layer.head_dim) * kBlockSize;
  TileBlocks<Element> blocks;
  blocks.first = seen.begin / kBlockSize;
  blocks.last = (seen.end + kBlockSize - 1) / kBlockSize;
  for (int32_t b = blocks.first; b < blocks.last; ++b) {
    blocks.keys[b] = head_keys<Element>(layer, tile.block_table[context * kBlocksPerTile + b], kv_head);
    blocks.values[b] = blocks.keys[b] + head_elements;
  }
  blocks.num_ahead = ahead.num_blocks;
  for (int32_t b = 0; b < ahead.num_blocks; ++b) {
    blocks.ahead[b] = head_keys<Element>(layer, ahead.blocks[b], ahead.kv_head);
  }
  return blocks;
}

template <typename Element>
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
  const TileBlocks<Element> blocks = find_blocks<Element>(layer, tile, kv_head, context, ahead, seen);
  const size_t stride = partial_floats(shape.head_dim);
  for (int32_t row = 0; row < num_rows; row += kRowsAtOnce) {
    const int32_t count = num_rows - row < kRowsAtOnce ? num_rows - row : kRowsAtOnce;
    const float* q[kRowsAtOnce];
    Span spans[kRowsAtOnce];
    for (int32_t r = 0; r < count; ++r) {
      const int32_t token = (row + r) / group, head = kv_head * group + (row + r) % group;
      q[r] = tile.q + token * tile.q_stride + static_cast<size_t>(head) * shape.head_dim;
      spans[r] = span_of(token);
    }
    const bool with_prefetch = tile.num_tokens == 1 && row == 0;  // prefill finds its blocks in the cache
    attend_some<Element>(count, q, spans, shape, blocks, with_prefetch, partials + row * stride,
                         scratch + row * kContextTile);
  }
}

void attend(const KVLayer& layer, const AttentionShape& shape, const QueryTile& tile, int32_t kv_head, int32_t context,
            const KeysAhead& ahead, float* partials, float* scratch) {
  if (layer.type == KVType::F16) {
    attend_typed<uint16_t>(layer, shape, tile, kv_head, context, ahead, partials, scratch);
  } else {
    attend_typed<float>(layer, shape, tile, kv_head, context, ahead, partials, scratch);
  }
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

template <typename Element>
inline void write_token(const KVLayer& layer, const float* k, const float* v, int32_t slot) {
  const int32_t place = slot % kBlockSize;
  for (int32_t h = 0; h < layer.num_kv_heads; ++h, k += layer.head_dim, v += layer.head_dim) {
    Element* keys = head_keys<Element>(layer, slot / kBlockSize, h);
    Element* value = keys + static_cast<size_t>(kBlockSize + place) * layer.head_dim;
    for_lanes(layer.head_dim, [&](int32_t i, int32_t n) {
      Element column[16];
      store_kv_part(column, load_lanes(k + i, n), n);
      for (int32_t c = 0; c < n; ++c) keys[(i + c) * kBlockSize + place] = column[c];
      store_kv_part(value + i, load_lanes(v + i, n), n);
    });
  }
}

template <typename Element>
inline void write_tokens(const KVLayer& layer, const KVRows& rows, const int32_t* slots, int32_t num_tokens) {
  for (int32_t t = 0; t < num_tokens; ++t) {
    write_token<Element>(layer, rows.keys + t * rows.key_stride, rows.values + t * rows.value_stride, slots[t]);
  }
}

void write_kv(const KVLayer& layer, const KVRows& rows, const int32_t* slots, int32_t num_tokens) {
  if (layer.type == KVType::F16) {
    write_tokens<uint16_t>(layer, rows, slots, num_tokens);
  } else {
    write_tokens<float>(layer, rows, slots, num_tokens);
  }
}
