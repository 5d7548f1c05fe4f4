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
  // Two counters take turns: the other one was last used before a barrier, and is used next after one.
  std::atomic<int>& next = next_item_[member.num_attends & 1];
  ++member.num_attends;
  if (member.index == 0) next_item_[member.num_attends & 1].store(0, std::memory_order_relaxed);
  if (is_split(attentions_[stage.spec])) {
    attend_split(stage, window, next, member);
  } else {
    attend_whole(stage, window, next, member);
  }
}

void Executor::attend_whole(const Stage& stage, const Window& window, std::atomic<int>& next, const Member& member) {
  const AttentionSpec& spec = attentions_[stage.spec];
  const AttentionShape& shape = spec.shape;
  const KVLayer layer = kv_.layer(spec.layer);
  const int num_items = num_tiles_ * shape.num_kv_heads;
  for (int i = next.fetch_add(1, std::memory_order_relaxed); i < num_items;
       i = next.fetch_add(1, std::memory_order_relaxed)) {
    // Head by head: neighbouring tiles of a long prompt find the head's keys and values in the cache.
    const int32_t kv_head = i / num_tiles_;
    const AttentionTile& tile = tiles_[i % num_tiles_];
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
