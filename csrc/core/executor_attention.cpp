// The attend stage of the executor: who computes which part of attention. The arithmetic of a row is the same in every
// case: partials of 128 positions, merged in rising order.

#include <algorithm>
#include <limits>

#include "core/executor.h"

namespace octavo {

// With few items (a query tile and a kv head each), context tiles are shared out instead.
bool Executor::is_split(const AttentionSpec& spec) const {
  const int threads = runtime_->pool.size();
  const int32_t group = spec.shape.num_heads / spec.shape.num_kv_heads;
  return threads > 1 && num_tiles_ * spec.shape.num_kv_heads < kItemsPerThread * threads &&
         max_tile_tokens_ * group <= kSplitRows;
}

QueryTile Executor::query_tile(const Stage& stage, const Window& window, const AttentionTile& tile) const {
  return {window.workspace + stage.in.offset + tile.first_token * stage.in.stride, stage.in.stride, tile.num_tokens,
          tile.first_position, tile.block_table};
}

Executor::ContextRange Executor::context_range(const AttentionShape& shape, const AttentionTile& tile) {
  const int32_t lowest =
      shape.window > 0 ? std::max(0, tile.first_position - shape.window + 1) : 0;  // of the first token
  const int32_t highest = tile.first_position + tile.num_tokens - 1;
  return {lowest / kContextTile, highest / kContextTile + 1};
}

void Executor::reset_states(float* states, int32_t num_rows, int32_t head_dim) const {
  const size_t stride = partial_floats(head_dim);
  std::fill_n(states, num_rows * stride, 0.0f);
  for (int32_t r = 0; r < num_rows; ++r) states[r * stride] = -std::numeric_limits<float>::infinity();
}

void Executor::finish_rows(const Stage& stage, const Window& window, const AttentionTile& tile, int32_t kv_head,
                           const float* states) const {
  const AttentionShape& shape = attentions_[stage.spec].shape;
  const int32_t group = shape.num_heads / shape.num_kv_heads;
  for (int32_t r = 0; r < tile.num_tokens * group; ++r, states += partial_floats(shape.head_dim)) {
    const int32_t token = tile.first_token + r / group, head = kv_head * group + r % group;
    step_->finish(states, shape.head_dim,
                  window.workspace + stage.out.offset + token * stage.out.stride +
                      static_cast<size_t>(head) * shape.head_dim);
  }
}

void Executor::run_attend(const Stage& stage, const Window& window, Member& member) {
  // Two sets of counters take turns: the other was last used before a barrier, and is used next after one.
  const int parity = member.num_attends & 1;
  ++member.num_attends;
  items_[member.index].next[1 - parity].store(0, std::memory_order_relaxed);
  if (is_split(attentions_[stage.spec])) {
    attend_split(stage, window, items_[0].next[parity], member);
  } else {
    attend_whole(stage, window, parity, member);
  }
}

// The next item of the member's own share, then of the shares of others; -1 at the end.
int Executor::take_item(int num_items, int parity, const Member& member) {
  const int threads = runtime_->pool.size();
  const bool by_head = max_tile_tokens_ > 1;
  for (int i = 0; i < threads; ++i) {
    const int owner = (member.index + i) % threads;
    Share share = share_of(num_items, owner, threads);
    if (!by_head) {
      const Share tiles = own_tiles(owner);
      const int heads = num_items / num_tiles_;
      share = {tiles.begin * heads, tiles.end * heads};
    }
    std::atomic<int>& next = items_[owner].next[parity];
    if (next.load(std::memory_order_relaxed) >= share.end - share.begin) continue;
    const int item = share.begin + next.fetch_add(1, std::memory_order_relaxed);
    if (item < share.end) return item;
  }
  return -1;
}

// Tiles of a long prompt go head by head: the neighbour finds the head's keys and values in the cache. Tiles of single
// tokens go request by request, in the order their blocks were fetched.
void Executor::attend_whole(const Stage& stage, const Window& window, int parity, const Member& member) {
  const int32_t num_heads = attentions_[stage.spec].shape.num_kv_heads;
  if (is_private_) {
    const Share tiles = own_tiles(member.index);
    for (int i = tiles.begin; i < tiles.end; ++i) {
      for (int32_t head = 0; head < num_heads; ++head) attend_tile(stage, window, tiles_[i], head, member);
    }
    return;
  }
  const bool by_head = max_tile_tokens_ > 1;
  const int num_items = num_tiles_ * num_heads;
  for (int i = take_item(num_items, parity, member); i >= 0; i = take_item(num_items, parity, member)) {
    const AttentionTile& tile = tiles_[by_head ? i % num_tiles_ : i / num_heads];
    attend_tile(stage, window, tile, by_head ? i / num_tiles_ : i % num_heads, member);
  }
}

void Executor::attend_tile(const Stage& stage, const Window& window, const AttentionTile& tile, int32_t kv_head,
                           const Member& member) {
  const AttentionSpec& spec = attentions_[stage.spec];
  const AttentionShape& shape = spec.shape;
  const KVLayer layer = kv_.layer(spec.layer);
  const QueryTile query = query_tile(stage, window, tile);
  const int32_t num_rows = tile.num_tokens * (shape.num_heads / shape.num_kv_heads);
  reset_states(member.states, num_rows, shape.head_dim);
  const ContextRange range = context_range(shape, tile);
  for (int32_t context = range.first; context < range.last; ++context) {
    step_->attend(layer, shape, query, kv_head, context, member.partials, member.scores);
    step_->merge(member.partials, num_rows, shape.head_dim, member.states);
  }
  finish_rows(stage, window, tile, kv_head, member.states);
}

// Lists the context blocks of requests that decode, tile after tile, as far as a cache holds them.
void Executor::list_fetches() {
  const size_t max_blocks = kFetchBytes / kv_.shape().layer_bytes();
  for (FetchList& list : fetch_lists_) {
    list.blocks.clear();
    list.start.assign(1, 0);
    for (int32_t i = 0; i < num_tiles_; ++i) {
      const AttentionTile& tile = tiles_[i];
      if (tile.num_tokens == 1) {
        const int32_t lowest = list.window > 0 ? std::max(0, tile.first_position - list.window + 1) : 0;
        const int32_t* last = tile.block_table + tile.first_position / kBlockSize + 1;
        for (const int32_t* block = tile.block_table + lowest / kBlockSize; block < last; ++block) {
          if (list.blocks.size() < max_blocks) list.blocks.push_back(*block);
        }
      }
      list.start.push_back(static_cast<int32_t>(list.blocks.size()));
    }
  }
}

// What a multiply stage fetches for the attend stage after it: the blocks of the member's share of the tiles, spread
// over the tiles of all products until then.
FetchQueue* Executor::fetch_for(const Stage& stage, const Window& window, Member& member) const {
  if (stage.next_attend < 0 || window.count < kFetchTokens) return nullptr;
  if (member.fetched_attend == stage.next_attend) return &member.fetch;
  member.fetched_attend = stage.next_attend;
  const AttentionSpec& spec = attentions_[body_.stages[stage.next_attend].spec];
  const auto list = std::find_if(fetch_lists_.begin(), fetch_lists_.end(),
                                 [&](const FetchList& each) { return each.window == spec.shape.window; });
  const Share share = own_tiles(member.index);
  const KVLayer layer = kv_.layer(spec.layer);
  const size_t region = kv_.shape().layer_bytes() / 64 * 64;
  const int32_t first = list->start[share.begin], last = list->start[share.end];
  const int64_t lines = static_cast<int64_t>(last - first) * (region / 64);
  const int64_t num_panels = stage.fetch_panels / (member.part.by_tokens ? 1 : runtime_->pool.size());
  const int64_t num_steps = num_panels * ((member.part.end - member.part.begin - 1) / kTileTokens + 1);
  member.fetch = {layer.pool + layer.layer_offset, layer.block_bytes,          region, list->blocks.data() + first,
                  list->blocks.data() + last,      0,
                  static_cast<int32_t>(std::min<int64_t>(lines / std::max<int64_t>(num_steps, 1) + 1, kFetchLines))};
  return &member.fetch;
}

void Executor::attend_split(const Stage& stage, const Window& window, std::atomic<int>& next, const Member& member) {
  const AttentionSpec& spec = attentions_[stage.spec];
  const AttentionShape& shape = spec.shape;
  const KVLayer layer = kv_.layer(spec.layer);
  const int num_items = num_tiles_ * shape.num_kv_heads;
  const size_t unit_floats = kSplitRows * partial_floats(shape.head_dim);
  // Units in a row: item after item, each with its context tiles.
  int unit = next.fetch_add(1, std::memory_order_relaxed), before = 0;
  for (int i = 0; i < num_items; ++i) {
    const AttentionTile& tile = tiles_[i % num_tiles_];
    const ContextRange range = context_range(shape, tile);
    const int after = before + range.last - range.first;
    for (; unit < after; unit = next.fetch_add(1, std::memory_order_relaxed)) {
      step_->attend(layer, shape, query_tile(stage, window, tile), i / num_tiles_, range.first + unit - before,
                    split_partials_.as<float>() + unit * unit_floats, member.scores);
    }
    before = after;
  }
  ThreadPool& pool = runtime_->pool;
  pool.barrier();
  before = 0;
  for (int i = 0; i < num_items; ++i) {
    const AttentionTile& tile = tiles_[i % num_tiles_];
    const ContextRange range = context_range(shape, tile);
    const int32_t num_rows = tile.num_tokens * (shape.num_heads / shape.num_kv_heads);
    if (i % pool.size() == member.index) {
      reset_states(member.states, num_rows, shape.head_dim);
      for (int32_t c = 0; c < range.last - range.first; ++c) {
        step_->merge(split_partials_.as<float>() + (before + c) * unit_floats, num_rows, shape.head_dim,
                     member.states);
      }
      finish_rows(stage, window, tile, i / num_tiles_, member.states);
    }
    before += range.last - range.first;
  }
}

}  // namespace octavo
