// The attend stage of the executor: who computes which part of attention. The arithmetic of a row is the same in every
// case: partials of 128 positions, merged in rising order.

#include <algorithm>
#include <limits>

#include "core/executor.h"

namespace octavo {

// With few items (a query tile and a kv head each), context tiles are shared out instead.
bool Executor::is_split(const AttentionSpec& spec) const {
  const int threads = team_size_;
  const int32_t group = spec.shape.num_heads / spec.shape.num_kv_heads;
  return threads > 1 && num_tiles_ * spec.shape.num_kv_heads < kItemsPerThread * threads &&
         max_tile_tokens_ * group <= kSplitRows;
}

QueryTile Executor::query_tile(const Stage& stage, const Part& part, const AttentionTile& tile) {
  return {row(stage.in, part, tile.first_token), stage.in.stride, tile.num_tokens, tile.first_position,
          tile.block_table};
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

void Executor::finish_rows(const Stage& stage, const Part& part, const AttentionTile& tile, int32_t kv_head,
                           const float* states) const {
  const AttentionShape& shape = attentions_[stage.spec].shape;
  const int32_t group = shape.num_heads / shape.num_kv_heads;
  for (int32_t r = 0; r < tile.num_tokens * group; ++r, states += partial_floats(shape.head_dim)) {
    const int32_t token = tile.first_token + r / group, head = kv_head * group + r % group;
    step_->finish(states, shape.head_dim,
                  row(stage.out, part, token) + static_cast<size_t>(head) * shape.head_dim);
  }
}

void Executor::run_attend(const Stage& stage, Member& member) {
  // Two sets of counters take turns: the other was last used before a barrier, and is used next after one.
  const int parity = member.num_attends & 1;
  ++member.num_attends;
  items_[member.index].next[1 - parity].store(0, std::memory_order_relaxed);
  if (is_split(attentions_[stage.spec])) {
    attend_split(stage, parity, member);
  } else {
    attend_whole(stage, parity, member);
  }
}

// The blocks of one context tile, as far as the tile's first token sees them.
KeysAhead Executor::keys_of(const AttentionTile& tile, int32_t kv_head, int32_t context) {
  constexpr int32_t kBlocks = kContextTile / kBlockSize;
  const int32_t num_blocks = tile.first_position / kBlockSize + 1 - context * kBlocks;
  return {tile.block_table + context * kBlocks, std::clamp(num_blocks, 0, kBlocks), kv_head};
}

// Tiles of a long prompt go head by head: the neighbour finds the head's keys and values in the cache. Tiles of single
// tokens go request by request, in the order their blocks were fetched.
void Executor::attend_whole(const Stage& stage, int parity, const Member& member) {
  const AttentionShape& shape = attentions_[stage.spec].shape;
  const int32_t num_heads = shape.num_kv_heads;
  const int num_items = num_tiles_ * num_heads;
  if (max_tile_tokens_ > 1) {
    const auto share = [&](int owner) { return share_of(num_items, owner, team_size_); };
    for (int i = take(parity, member, share); i >= 0; i = take(parity, member, share)) {
      attend_tile(stage, tiles_[i % num_tiles_], i / num_tiles_, {}, member);
    }
    return;
  }
  const auto attend_item = [&](int i) {
    const int next = i + 1 < num_items ? i + 1 : i;
    const AttentionTile& next_tile = tiles_[next / num_heads];
    const KeysAhead ahead = keys_of(next_tile, next % num_heads, context_range(shape, next_tile).first);
    attend_tile(stage, tiles_[i / num_heads], i % num_heads, ahead, member);
  };
  const auto share = [&](int owner) {
    const Share& tiles = own_tiles_[owner];
    return Share{tiles.begin * num_heads, tiles.end * num_heads};
  };
  if (is_private_) {
    const Share own = share(member.index);
    for (int i = own.begin; i < own.end; ++i) attend_item(i);
  } else {
    for (int i = take(parity, member, share); i >= 0; i = take(parity, member, share)) attend_item(i);
  }
}

// ahead: the keys of what is attended to after this tile.
void Executor::attend_tile(const Stage& stage, const AttentionTile& tile, int32_t kv_head, const KeysAhead& ahead,
                           const Member& member) {
  const AttentionSpec& spec = attentions_[stage.spec];
  const AttentionShape& shape = spec.shape;
  const KVLayer layer = kv_.layer(spec.layer);
  const QueryTile query = query_tile(stage, member.part, tile);
  const int32_t num_rows = tile.num_tokens * (shape.num_heads / shape.num_kv_heads);
  reset_states(member.states, num_rows, shape.head_dim);
  const ContextRange range = context_range(shape, tile);
  for (int32_t context = range.first; context < range.last; ++context) {
    const bool is_last = context + 1 == range.last;
    step_->attend(layer, shape, query, kv_head, context, is_last ? ahead : keys_of(tile, kv_head, context + 1),
                  member.partials, member.scores);
    step_->merge(member.partials, num_rows, shape.head_dim, member.states);
  }
  finish_rows(stage, member.part, tile, kv_head, member.states);
}

// Few items: each item's context tiles are units of their own, item after item in a row.
void Executor::attend_split(const Stage& stage, int parity, const Member& member) {
  const AttentionSpec& spec = attentions_[stage.spec];
  const AttentionShape& shape = spec.shape;
  const KVLayer layer = kv_.layer(spec.layer);
  const int num_items = num_tiles_ * shape.num_kv_heads;
  const size_t unit_floats = kSplitRows * partial_floats(shape.head_dim);
  int num_units = 0;
  for (int i = 0; i < num_tiles_; ++i) {
    const ContextRange range = context_range(shape, tiles_[i]);
    num_units += (range.last - range.first) * shape.num_kv_heads;
  }
  const auto share_of_units = [&](int owner) { return share_of(num_units, owner, team_size_); };
  for (int unit = take(parity, member, share_of_units); unit >= 0; unit = take(parity, member, share_of_units)) {
    int item = 0, context = unit;
    ContextRange range = context_range(shape, tiles_[0]);
    while (context >= range.last - range.first) {
      context -= range.last - range.first;
      range = context_range(shape, tiles_[++item % num_tiles_]);
    }
    context += range.first;
    const AttentionTile& tile = tiles_[item % num_tiles_];
    const int32_t kv_head = item / num_tiles_;
    step_->attend(layer, shape, query_tile(stage, member.part, tile), kv_head, context,
                  keys_of(tile, kv_head, context + 1), split_partials_.as<float>() + unit * unit_floats, member.scores);
  }
  runtime_->pool.barrier(member.index);
  int before = 0;
  for (int i = 0; i < num_items; ++i) {
    const AttentionTile& tile = tiles_[i % num_tiles_];
    const ContextRange range = context_range(shape, tile);
    const int32_t num_rows = tile.num_tokens * (shape.num_heads / shape.num_kv_heads);
    if (i % team_size_ == member.index) {
      reset_states(member.states, num_rows, shape.head_dim);
      for (int32_t c = 0; c < range.last - range.first; ++c) {
        step_->merge(split_partials_.as<float>() + (before + c) * unit_floats, num_rows, shape.head_dim,
                     member.states);
      }
      finish_rows(stage, member.part, tile, i / num_tiles_, member.states);
    }
    before += range.last - range.first;
  }
}

}  // namespace octavo
