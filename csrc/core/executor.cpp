#include "core/executor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

namespace octavo {
namespace {

int32_t kept_stride(int32_t hidden_size) { return static_cast<int32_t>(round_up(hidden_size, 16)); }

}  // namespace

Status Executor::create(std::shared_ptr<Runtime> runtime, const Program& program, const KVShape& kv_shape,
                        int32_t num_blocks, int32_t max_batched_tokens, std::unique_ptr<Executor>* out) {
  if (!program.is_complete()) return Status::invalid("the program has no end");
  if (max_batched_tokens <= 0) return Status::invalid("max_batched_tokens must be at least 1");
  for (const AttentionSpec& spec : program.attentions()) {
    if (spec.layer >= kv_shape.num_layers || spec.shape.num_kv_heads != kv_shape.num_kv_heads ||
        spec.shape.head_dim != kv_shape.head_dim) {
      return Status::invalid("attention of layer " + std::to_string(spec.layer) + " does not fit the KV layout");
    }
  }
  std::unique_ptr<Executor> executor(new Executor(std::move(runtime)));
  const Runtime& shared = *executor->runtime_;
  executor->linear_ = shared.table->linear;
  executor->step_ = shared.table->step;
  executor->limits_ = {max_batched_tokens, num_blocks, program.num_token_ids(), program.vocab_size()};
  executor->hidden_size_ = program.hidden_size();
  executor->ropes_ = program.ropes();
  executor->attentions_ = program.attentions();
  const int threads = shared.pool.size();
  executor->body_ = make_plan(program, shared.weights, false, threads);
  executor->head_ = make_plan(program, shared.weights, true, threads);
  if (Status status = KVPool::create(kv_shape, num_blocks, &executor->kv_); !status.ok()) return status;
  if (Status status = executor->allocate(); !status.ok()) return status;
  *out = std::move(executor);
  return {};
}

Status Executor::allocate() {
  const int32_t chunk = std::min(kChunkTokens, limits_.max_tokens);
  const int threads = runtime_->pool.size();
  // Below kOwnTokens per member the activations are shared.
  const int32_t shared_tokens = std::min(chunk, kOwnTokens * threads);
  const size_t acts = std::max(linear_->act_bytes(shared_tokens, body_.max_quantized_cols, runtime_->precision),
                               linear_->act_bytes(kSlabRows, head_.max_quantized_cols, runtime_->precision));
  const size_t own_acts = linear_->act_bytes(std::max(chunk, kCopiedTokens), body_.max_quantized_cols, runtime_->precision);
  int32_t group = 1;
  for (const AttentionSpec& spec : attentions_) {
    group = std::max(group, spec.shape.num_heads / spec.shape.num_kv_heads);
  }
  const size_t partial = partial_floats(kv_.shape().head_dim);
  const size_t max_contexts = (limits_.num_blocks - 1) / (kContextTile / kBlockSize) + 1;
  const struct {
    Mapping* memory;
    size_t bytes;
  } wanted[] = {
      {&body_workspace_, chunk * (body_.shared_floats + body_.copied_floats) * sizeof(float)},
      {&head_workspace_, kSlabRows * (head_.shared_floats + head_.copied_floats) * sizeof(float)},
      {&kept_rows_, size_t{1} * limits_.max_tokens * kept_stride(hidden_size_) * sizeof(float)},
      {&acts_, acts},
      {&split_partials_,
       threads > 1 ? kItemsPerThread * threads * max_contexts * kSplitRows * partial * sizeof(float) : 0},
  };
  for (const auto& [memory, bytes] : wanted) {
    if (Status status = Mapping::create(bytes, memory); !status.ok()) return status;
  }
  const size_t rows = static_cast<size_t>(kQueryTokens) * group;
  const size_t multiply = round_up(linear_->scratch_bytes(std::max(body_.max_cols, head_.max_cols)), kCacheLine);
  member_memory_.resize(threads);
  members_.resize(threads);
  for (int i = 0; i < threads; ++i) {
    const size_t copied = round_up(kCopiedTokens * body_.copied_floats, kCacheLine);
    const size_t floats = copied + rows * (2 * partial + kContextTile);
    if (Status status = Mapping::create(multiply + own_acts + floats * sizeof(float), &member_memory_[i]);
        !status.ok()) {
      return status;
    }
    Member& member = members_[i];
    member.index = i;
    member.multiply_scratch = member_memory_[i].data();
    member.acts = member_memory_[i].data() + multiply;
    member.copied = reinterpret_cast<float*>(member.acts + own_acts);
    member.states = member.copied + copied;
    member.partials = member.states + rows * partial;
    member.scores = member.partials + rows * partial;
  }
  tiles_.resize(chunk);
  items_ = std::make_unique<ItemCounter[]>(threads);
  for (const AttentionSpec& spec : attentions_) {
    const auto is_same = [&](const FetchList& list) { return list.window == spec.shape.window; };
    if (std::any_of(fetch_lists_.begin(), fetch_lists_.end(), is_same)) continue;
    FetchList& list = fetch_lists_.emplace_back();
    list.window = spec.shape.window;
    list.blocks.reserve(kFetchBytes / kv_.shape().layer_bytes() + 1);
    list.start.reserve(chunk + 1);
  }
  for (auto* array : {&decode_.token_ids, &decode_.positions, &decode_.slots, &decode_.seq_lens,
                      &decode_.sample_positions, &decode_.ranks}) {
    array->resize(limits_.max_tokens);
  }
  decode_.logprobs.resize(limits_.max_tokens);
  return Sampler::create(*step_, limits_.vocab_size, kSlabRows, threads, &sampler_);
}

Status Executor::execute(const BatchView& batch, const SampleView& sample, const ResultView& result) {
  if (Status status = check_batch(batch, limits_); !status.ok()) return status;
  if (Status status = check_sample(sample, result, batch.num_rows(), limits_); !status.ok()) return status;
  now_ = {&batch, &sample, &result};
  run_team(
      [](void* context, int member) {
        Executor& executor = *static_cast<Executor*>(context);
        executor.run_step(executor.members_[member]);
      },
      this);
  now_ = {};
  return {};
}

// Runs a task on the team, or on this thread alone while others keep the rest of it from running.
void Executor::run_team(ThreadPool::Task task, void* context) {
  const auto now = [] {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  ThreadPool& pool = runtime_->pool;
  const int64_t begin = now(), slept = pool.slept_ns();
  const bool is_alone = pool.size() == 1 || control_.is_alone(begin);
  team_size_ = is_alone ? 1 : pool.size();
  pool.run(task, context, is_alone);
  if (is_alone) return;
  const int64_t end = now();
  control_.observe(end, end - begin, pool.slept_ns() - slept);
}

void Executor::set_counting(bool is_counting) {
  is_counting_ = is_counting;
  if (!is_counting) return;
  body_counters_.assign(body_.stages.size(), {});
  head_counters_.assign(head_.stages.size(), {});
  sample_counter_ = {};
}

std::vector<OpCount> Executor::op_counts() const {
  std::vector<OpCount> counts;
  if (body_counters_.empty()) return counts;
  add_counts(body_, body_counters_, counts);
  add_counts(head_, head_counters_, counts);
  counts.push_back({"sample", {}, sample_counter_});
  return counts;
}

void Executor::run_step(Member& member) {
  ThreadPool& pool = runtime_->pool;
  member.num_attends = 0;
  for (std::atomic<int>& next : items_[member.index].next) next.store(0, std::memory_order_relaxed);
  const int32_t num_tokens = now_.batch->num_tokens(), num_rows = now_.batch->num_rows();
  for (int32_t begin = 0; begin < num_tokens; begin += kChunkTokens) {
    const int32_t count = std::min(kChunkTokens, num_tokens - begin);
    if (begin > 0) pool.barrier();  // shares of tokens differ between chunks
    if (member.index == 0) make_attention_tiles(begin, count);
    member.fetched_attend = -1;
    member.part = body_part(count, member);
    if (member.part.sharing == Sharing::kTokens) pool.barrier();  // the tiles are read before any other
    run_plan(body_, body_counters_, {begin, count}, member);
  }
  for (int32_t begin = 0; begin < num_rows; begin += kSlabRows) {
    const int32_t count = std::min(kSlabRows, num_rows - begin);
    pool.barrier();
    member.part = head_part(count, member);
    run_plan(head_, head_counters_, {begin, count}, member);
    pool.barrier();
    sample_rows({row(head_.output, member.part, 0), head_.output.stride, begin, count}, member);
  }
}

void Executor::sample_rows(const LogitSlab& slab, const Member& member) {
  Lap lap(is_counting_ && member.index == 0);
  sampler_.summarize(slab, *now_.sample, member.index, team_size_);
  runtime_->pool.barrier();
  sampler_.choose(slab, *now_.sample, *now_.result, member.index, team_size_);
  if (!is_counting_ || member.index != 0) return;
  lap.add_to(sample_counter_.work_ns);
  ++sample_counter_.calls;
  sample_counter_.rows += slab.num_rows;
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
  chunk_tokens_ = count;
  is_private_ = sharing_for(count) == Sharing::kTokens && max_tile_tokens_ == 1 && is_balanced();
  if (count >= kFetchTokens) list_fetches();
}

Executor::Sharing Executor::sharing_for(int32_t count) const {
  if (count >= kOwnTokens * team_size_) return Sharing::kTokens;
  return count <= kCopiedTokens ? Sharing::kCopies : Sharing::kTiles;
}

Executor::Part Executor::body_part(int32_t count, const Member& member) const {
  const int32_t chunk = std::min(kChunkTokens, limits_.max_tokens);
  const Area shared{body_workspace_.as<float>(), chunk};
  const Area common{shared.data + chunk * body_.shared_floats, chunk};
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

// Logits are long and rows few: they are always shared.
Executor::Part Executor::head_part(int32_t count, const Member& member) const {
  const Area shared{head_workspace_.as<float>(), kSlabRows};
  const Area common{shared.data + kSlabRows * head_.shared_floats, kSlabRows};
  const Share own = tile_tokens(count, member.index);
  return {Sharing::kTiles, 0, count, own, own, shared, common, acts_.data()};
}

Share Executor::tile_tokens(int32_t count, int member) const {
  const Share tiles = share_of((count - 1) / kTileTokens + 1, member, team_size_);
  return {std::min(tiles.begin * kTileTokens, count), std::min(tiles.end * kTileTokens, count)};
}

Share Executor::own_tokens(int32_t count, int member) const {
  const Share steps = share_of((count - 1) / kTokenStep + 1, member, team_size_);
  return {std::min(steps.begin * kTokenStep, count), std::min(steps.end * kTokenStep, count)};
}

// The tiles that begin with a token of the member's own.
Share Executor::own_tiles(int member) const {
  if (sharing_for(chunk_tokens_) != Sharing::kTokens) return share_of(num_tiles_, member, team_size_);
  const Share tokens = own_tokens(chunk_tokens_, member);
  const auto first_from = [&](int32_t token) {
    const auto at = std::lower_bound(tiles_.begin(), tiles_.begin() + num_tiles_, token,
                                     [](const AttentionTile& tile, int32_t t) { return tile.first_token < t; });
    return static_cast<int>(at - tiles_.begin());
  };
  return {first_from(tokens.begin), first_from(tokens.end)};
}

// Whether every member has about as much context to read as the others.
bool Executor::is_balanced() const {
  const int threads = team_size_;
  int64_t total = 0, most = 0;
  for (int member = 0; member < threads; ++member) {
    const Share tiles = own_tiles(member);
    int64_t positions = 0;
    for (int i = tiles.begin; i < tiles.end; ++i) positions += tiles_[i].first_position + 1;
    total += positions;
    most = std::max(most, positions);
  }
  return static_cast<double>(most) * threads <= kMaxImbalance * static_cast<double>(total);
}

void Executor::run_plan(const Plan& plan, std::vector<StageCounter>& counters, const Window& window, Member& member) {
  const bool is_counted = is_counting_ && member.index == 0;
  Lap lap(is_counted);
  const std::vector<Stage>& stages = plan.stages;
  for (size_t i = 0; i < stages.size();) {
    size_t end = i + 1;
    if (is_token_stage(stages[i].kind)) {
      while (end < stages.size() && is_token_stage(stages[end].kind)) ++end;
      run_token_stages(plan, i, end, counters, window, member, lap);
    } else if (stages[i].kind == StageKind::kMultiply) {
      run_multiply(stages[i], window, member);
    } else {
      run_attend(stages[i], member);
    }
    if (is_counted && !is_token_stage(stages[i].kind)) lap.add_to(counters[i].work_ns);
    if (end < stages.size() && needs_barrier(plan, i, end, member.part)) runtime_->pool.barrier();
    if (is_counted) {
      lap.add_to(counters[end - 1].wait_ns);
      for (; i < end; ++i) {
        ++counters[i].calls;
        counters[i].rows += window.count;
      }
    }
    i = end;
  }
}

// Whether stage `next` reads or overwrites what other members write in the stages before it, from `stage` on.
bool Executor::needs_barrier(const Plan& plan, size_t stage, size_t next, const Part& part) const {
  const bool is_attention =
      plan.stages[stage].kind == StageKind::kAttend || plan.stages[next].kind == StageKind::kAttend;
  switch (part.sharing) {
    case Sharing::kCopies: return is_attention || !is_token_stage(plan.stages[stage].kind);
    case Sharing::kTiles: return true;
    case Sharing::kTokens: return is_attention && !is_private_;
  }
  return true;
}

// Stages [begin, end) on this member's tokens, tile by tile.
void Executor::run_token_stages(const Plan& plan, size_t begin, size_t end, std::vector<StageCounter>& counters,
                                const Window& window, const Member& member, Lap& lap) {
  const Part& part = member.part;
  const bool is_counted = is_counting_ && member.index == 0;
  for (int32_t first = part.tokens.begin; first < part.tokens.end; first += kTileTokens) {
    const int32_t last = std::min(first + kTileTokens, part.tokens.end);
    for (size_t s = begin; s < end; ++s) {
      run_token_stage(plan.stages[s], window, part, first, last);
      if (is_counted) lap.add_to(counters[s].work_ns);
    }
  }
}

void Executor::run_token_stage(const Stage& stage, const Window& window, const Part& part, int32_t begin,
                               int32_t end) {
  const auto in = [&](int32_t t) { return row(stage.in, part, t); };
  const auto in2 = [&](int32_t t) { return row(stage.in2, part, t); };
  const auto out = [&](int32_t t) { return row(stage.out, part, t); };
  const BatchView& batch = *now_.batch;
  switch (stage.kind) {
    case StageKind::kRopeTable:
      return fill_rope_table(stage, window, part, begin, end);
    case StageKind::kLoadRows:
      return load_rows(stage, window, part, begin, end);
    case StageKind::kStoreRows:
      return store_rows(stage, window, part, begin, end);
    case StageKind::kEmbed:
      for (int32_t t = begin; t < end; ++t) {
        linear_->unpack_row(*stage.table, batch.token_ids[window.begin + t], stage.number, out(t));
      }
      return;
    case StageKind::kRmsNorm:
      for (int32_t t = begin; t < end; ++t) {
        step_->rms_norm(in(t), stage.weight, stage.in.width / stage.group_size, stage.group_size, stage.number, out(t));
      }
      return;
    case StageKind::kRope: {
      const RopeSpec& spec = ropes_[stage.spec];
      for (int32_t t = begin; t < end; ++t) {
        step_->rope(in(t), in2(t), in2(t) + spec.num_dims, spec.order, stage.in.width / spec.head_dim, spec.head_dim,
                    spec.num_dims, out(t));
      }
      return;
    }
    case StageKind::kGated:
      for (int32_t t = begin; t < end; ++t) {
        step_->gated(stage.activation, in(t), in2(t), stage.out.width, out(t));
      }
      return;
    case StageKind::kAdd:
      for (int32_t t = begin; t < end; ++t) step_->add(in(t), in2(t), stage.out.width, out(t));
      return;
    case StageKind::kSoftcap:
      for (int32_t t = begin; t < end; ++t) step_->softcap(in(t), stage.number, stage.out.width, out(t));
      return;
    case StageKind::kQuantize:
      linear_->quantize(in(part.begin), stage.in.stride, part.end - part.begin, stage.in.width, runtime_->precision,
                        (begin - part.begin) / kTileTokens, (begin - part.begin) / kTileTokens + 1, part.acts);
      return;
    case StageKind::kWriteKv: {
      const KVLayer layer = kv_.layer(attentions_[stage.spec].layer);
      begin = std::max(begin, part.stored.begin);
      end = std::min(end, part.stored.end);
      if (begin >= end) return;
      step_->write_kv(layer, {in(begin), stage.in.stride, in2(begin), stage.in2.stride},
                      &batch.slots[window.begin + begin], end - begin);
      return;
    }
    case StageKind::kMultiply:
    case StageKind::kAttend:
      return;  // shared otherwise
  }
}

// Angles in double: at position 131,072 a float angle would be off by 0.004.
void Executor::fill_rope_table(const Stage& stage, const Window& window, const Part& part, int32_t begin,
                               int32_t end) {
  const RopeSpec& spec = ropes_[stage.spec];
  const int32_t half = spec.num_dims / 2;
  for (int32_t t = begin; t < end; ++t) {
    float* cos = row(stage.out, part, t);
    float* sin = cos + spec.num_dims;
    const double position = now_.batch->positions[window.begin + t];
    for (int32_t i = 0; i < half; ++i) {
      const int32_t first = spec.order == RopeOrder::kNeox ? i : 2 * i;
      const int32_t second = spec.order == RopeOrder::kNeox ? i + half : 2 * i + 1;
      const double angle = position * spec.frequencies[i];
      cos[first] = cos[second] = static_cast<float>(std::cos(angle));
      sin[second] = static_cast<float>(std::sin(angle));
      sin[first] = -sin[second];
    }
  }
}

void Executor::load_rows(const Stage& stage, const Window& window, const Part& part, int32_t begin,
                         int32_t end) {
  const size_t stride = kept_stride(hidden_size_);
  for (int32_t t = begin; t < end; ++t) {
    std::memcpy(row(stage.out, part, t),
                kept_rows_.as<float>() + (window.begin + t) * stride, hidden_size_ * sizeof(float));
  }
}

// Keeps the hidden rows whose logits are wanted.
void Executor::store_rows(const Stage& stage, const Window& window, const Part& part, int32_t begin,
                          int32_t end) {
  const auto rows = now_.batch->output_rows;
  const size_t stride = kept_stride(hidden_size_);
  begin = window.begin + std::max(begin, part.stored.begin);
  end = window.begin + std::min(end, part.stored.end);
  auto kept = std::lower_bound(rows.begin(), rows.end(), begin);
  for (; kept != rows.end() && *kept < end; ++kept) {
    std::memcpy(kept_rows_.as<float>() + (kept - rows.begin()) * stride, row(stage.in, part, *kept - window.begin),
                hidden_size_ * sizeof(float));
  }
}

void Executor::run_multiply(const Stage& stage, const Window& window, Member& member) {
  const Part& part = member.part;
  const int32_t num_tokens = part.end - part.begin;
  const MultiplyInput in{part.acts, runtime_->precision, row(stage.in, part, part.begin), stage.in.stride, num_tokens};
  FetchQueue* fetch = fetch_for(stage, window, member);
  int32_t before = 0;
  for (const Product& product : stage.products) {
    const int32_t num_panels = product.matrix->num_panels;
    const Share panels = part.sharing == Sharing::kTokens || team_size_ == 1
                             ? Share{0, num_panels}
                                        : Share{std::clamp(stage.splits[member.index] - before, 0, num_panels),
                                                std::clamp(stage.splits[member.index + 1] - before, 0, num_panels)};
    before += num_panels;
    if (panels.begin == panels.end) continue;
    float* out = row(product.out, part, part.begin);
    linear_->multiply(*product.matrix, in, panels.begin, panels.end, out, product.out.stride, member.multiply_scratch,
                      fetch);
    if (product.bias == nullptr) continue;
    const int32_t first = panels.begin * kPanelRows;
    const int32_t count = std::min(panels.end * kPanelRows, product.matrix->rows) - first;
    for (int32_t t = 0; t < num_tokens; ++t) {
      float* row = out + t * product.out.stride + first;
      step_->add(row, product.bias + first, count, row);
    }
  }
}

}  // namespace octavo
