// Included inside `namespace octavo::<isa> { namespace {` after linear_tile.h: no include, no namespace here.
// What every panel of one multiply call shares, and where in it a tile lies. A place is a token; with Precision::kInt8x2 a
// token has two.
#pragma once

struct Operands {
  const std::byte* acts;
  const float* x;
  size_t x_stride;
  int32_t tokens;
  int32_t terms;
  int32_t cols;
  size_t out_stride;
  FetchQueue* fetch;

  int32_t places() const { return tokens * terms; }
  // The activation tile that holds `place`.
  const ActBlock* tile(int32_t place) const {
    return reinterpret_cast<const ActBlock*>(acts + place / kTileTokens * act_tile_bytes(cols, terms));
  }
  // Where the results of `count` places from `place` on go, in rows of `out`.
  TileOut tile_out(float* out, int32_t place, int32_t count, Rows rows) const {
    return {out + place / terms * out_stride, out_stride, count / terms, rows, static_cast<int16_t>(terms)};
  }
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
