// Who computes what of a chunk, and what is fetched meanwhile: see docs/design/step.md.

#include <algorithm>

#include "core/clock.h"
#include "core/executor.h"
#include "cpu/traits.h"

namespace octavo {

Executor::Sharing Executor::sharing_for(int32_t count) const {
  if (count >= kOwnTokens * team_size_) return Sharing::kTokens;
  return count <= kCopiedTokens ? Sharing::kCopies : Sharing::kTiles;
}

Executor::Part Executor::body_part(int32_t count, const Member& member) const {
  const Area shared{body_workspace_.as<float>(), chunk_tokens_};
  const Area common{shared.data + chunk_tokens_ * body_.shared_floats, chunk_tokens_};
  const Share all{0, count};
  switch (sharing_for(count)) {
    case Sharing::kCopies: {
      const Share stored = share_of(count, member.index, team_size_);
      return {Sharing::kCopies, 0, count, all, stored, shared, {member.copied, kCopiedTokens}, member.acts};
    }
    case Sharing::kTiles: {
      const Share own = tile_tokens(count, member.index);
      return {Sharing::kTiles, 0, count, own, own, shared, common, acts_.data()};
    }
    case Sharing::kTokens: break;
  }
  const Share own = own_tokens(count, member.index);
  return {Sharing::kTokens, own.begin, own.end, own, own, shared, common, member.acts};
}

// The buffers are those of all members together. Few rows have no copies: the products are most of the work.
Executor::Part Executor::head_part(int32_t count, const Member& member) const {
  const Area shared{head_workspace_.as<float>(), kSlabRows};
  const Area common{shared.data + kSlabRows * head_.shared_floats, kSlabRows};
  if (sharing_for(count) == Sharing::kTokens) {
    const Share own = own_tokens(count, member.index);
    return {Sharing::kTokens, own.begin, own.end, own, own, shared, common, member.acts};
  }
  const Share own = tile_tokens(count, member.index);
  return {Sharing::kTiles, 0, count, own, own, shared, common, acts_.data()};
}

Share Executor::tile_tokens(int32_t count, int member) const {
  const Share tiles = share_of((count - 1) / kTileTokens + 1, member, team_size_);
  return {std::min(tiles.begin * kTileTokens, count), std::min(tiles.end * kTileTokens, count)};
}

Share Executor::own_tokens(int32_t count, int member) const {
  if (team_size_ == 1) return {0, count};
  const Share steps = by_tokens_.share_of((count - 1) / kTokenStep + 1, member);
  return {std::min(steps.begin * kTokenStep, count), std::min(steps.end * kTokenStep, count)};
}

// The tiles that begin with a token of the member's own.
Share Executor::find_own_tiles(int32_t count, int member) const {
  if (sharing_for(count) != Sharing::kTokens) return share_of(num_tiles_, member, team_size_);
  const Share tokens = own_tokens(count, member);
  const auto first_from = [&](int32_t token) {
    const auto at = std::lower_bound(tiles_.begin(), tiles_.begin() + num_tiles_, token,
                                     [](const AttentionTile& tile, int32_t t) { return tile.first_token < t; });
    return static_cast<int>(at - tiles_.begin());
  };
  return {first_from(tokens.begin), first_from(tokens.end)};
}

// Whether every member has about as much context to read as the others, for its part of the work.
bool Executor::is_balanced() const {
  if (team_size_ == 1) return true;
  double total = 0.0, most = 0.0;
  for (int member = 0; member < team_size_; ++member) {
    int64_t positions = 0;
    for (int i = own_tiles_[member].begin; i < own_tiles_[member].end; ++i) positions += tiles_[i].first_position + 1;
    total += static_cast<double>(positions);
    most = std::max(most, static_cast<double>(positions) / by_tokens_.part_of(member));
  }
  return most <= kMaxImbalance * total;
}

void Executor::watch_members(int64_t now_ns) {
  watched_since_ns_ = now_ns;
  for (const Member& member : members_) waited_ns_[member.index] = runtime_->pool.waited_ns(member.index);
}

// Tells what members did since watch_members().
void Executor::observe_members(TeamBalance& balance, int64_t now_ns) {
  for (int i = 0; i < team_size_; ++i) work_[i].waited_ns = runtime_->pool.waited_ns(i) - waited_ns_[i];
  balance.observe(now_ns, now_ns - watched_since_ns_, work_);
}

// Decides who computes what of a chunk. Members read it after a barrier only.
void Executor::begin_chunk(int32_t begin, int32_t count) {
  if (team_size_ > 1 && sharing_for(count) == Sharing::kTokens) {
    const int64_t now = now_ns();
    by_tokens_.update(now);
    watch_members(now);
    watched_tokens_ = count;
  }
  make_attention_tiles(begin, count);
}

// What members did of the chunk that is over, if it was shared by tokens.
void Executor::end_chunk() {
  if (watched_tokens_ == 0) return;
  for (int i = 0; i < team_size_; ++i) {
    const Share own = own_tokens(watched_tokens_, i);
    work_[i].amount = own.end - own.begin;
  }
  observe_members(by_tokens_, now_ns());
  watched_tokens_ = 0;
}

// Cuts each request's tokens of the chunk into query tiles. One thread does it while the others begin the token stages;
// the tiles are read after a barrier only.
void Executor::make_attention_tiles(int32_t begin, int32_t count) {
  const BatchView& batch = *now_.batch;
  num_tiles_ = 0;
  max_tile_tokens_ = 0;
  for (int32_t r = 0; r < batch.num_requests(); ++r) {
    const int32_t first = std::max(batch.query_start[r], begin);
    const int32_t last = std::min(batch.query_start[r + 1], begin + count);
    for (int32_t t = first; t < last; t += kQueryTokens) {
      const int32_t size = std::min(kQueryTokens, last - t);
      tiles_[num_tiles_++] = {t - begin, size, batch.positions[t],
                              batch.block_tables.data() + static_cast<size_t>(r) * batch.table_width};
      max_tile_tokens_ = std::max(max_tile_tokens_, size);
    }
  }
  for (int member = 0; member < team_size_; ++member) own_tiles_[member] = find_own_tiles(count, member);
  is_private_ = sharing_for(count) == Sharing::kTokens && max_tile_tokens_ == 1 && is_balanced();
  if (count >= kFetchTokens && !fetching_costs_products) list_fetches();
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
  if (fetching_costs_products || stage.next_attend < 0 || window.count < kFetchTokens) return nullptr;
  if (member.fetched_attend == stage.next_attend) return &member.fetch;
  member.fetched_attend = stage.next_attend;
  const AttentionSpec& spec = attentions_[body_.stages[stage.next_attend].spec];
  const auto list = std::find_if(fetch_lists_.begin(), fetch_lists_.end(),
                                 [&](const FetchList& each) { return each.window == spec.shape.window; });
  const Share share = own_tiles_[member.index];
  const KVLayer layer = kv_.layer(spec.layer);
  const size_t region = kv_.shape().layer_bytes() / 64 * 64;
  const int32_t first = list->start[share.begin], last = list->start[share.end];
  const int64_t lines = static_cast<int64_t>(last - first) * (region / 64);
  const int64_t num_panels = stage.fetch_panels / (member.part.sharing == Sharing::kTokens ? 1 : team_size_);
  const int64_t num_steps = num_panels * ((member.part.end - member.part.begin - 1) / kTileTokens + 1);
  member.fetch = {layer.pool + layer.layer_offset, layer.block_bytes,          region, list->blocks.data() + first,
                  list->blocks.data() + last,      0,
                  static_cast<int32_t>(std::min<int64_t>(lines / std::max<int64_t>(num_steps, 1) + 1, kFetchLines))};
  return &member.fetch;
}

}  // namespace octavo
