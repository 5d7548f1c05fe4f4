#include "core/executor.h"

#include <algorithm>

namespace octavo {

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
  executor->body_ = make_plan(program, shared.weights, false);
  executor->head_ = make_plan(program, shared.weights, true);
  if (Status status = KVPool::create(kv_shape, num_blocks, &executor->kv_); !status.ok()) return status;
  if (Status status = executor->allocate(); !status.ok()) return status;
  *out = std::move(executor);
  return {};
}

Status Executor::allocate() {
  const int threads = runtime_->pool.size();
  const int32_t chunk = std::min({kChunkTokensEach * std::max(threads, 2), kMaxChunkTokens, limits_.max_tokens});
  chunk_tokens_ = chunk;
  // Below kOwnTokens per member the activations are shared.
  const int32_t shared_tokens = std::min(chunk, kOwnTokens * threads);
  const size_t acts = std::max(linear_->act_bytes(shared_tokens, body_.max_quantized_cols, runtime_->precision),
                               linear_->act_bytes(kSlabRows, head_.max_quantized_cols, runtime_->precision));
  const size_t own_acts =
      std::max(linear_->act_bytes(std::max(chunk, kCopiedTokens), body_.max_quantized_cols, runtime_->precision),
               linear_->act_bytes(kSlabRows, head_.max_quantized_cols, runtime_->precision));
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
      {&kept_rows_, size_t{1} * limits_.max_tokens * kept_stride() * sizeof(float)},
      {&acts_, acts},
      {&split_partials_,
       threads > 1 ? kItemsPerThread * threads * max_contexts * kSplitRows * partial * sizeof(float) : 0},
  };
  for (const auto& [memory, bytes] : wanted) {
    if (Status status = Mapping::create(bytes, memory); !status.ok()) return status;
  }
  const size_t rows = static_cast<size_t>(kQueryTokens) * group;
  member_memory_.resize(threads);
  members_.resize(threads);
  for (int i = 0; i < threads; ++i) {
    const size_t copied = round_up(kCopiedTokens * body_.copied_floats, kCacheLine);
    const size_t floats = copied + rows * (2 * partial + kContextTile) + kSlabRows * kPieceStride;
    if (Status status = Mapping::create(own_acts + floats * sizeof(float), &member_memory_[i]); !status.ok()) {
      return status;
    }
    Member& member = members_[i];
    member.index = i;
    member.acts = member_memory_[i].data();
    member.copied = reinterpret_cast<float*>(member.acts + own_acts);
    member.states = member.copied + copied;
    member.partials = member.states + rows * partial;
    member.scores = member.partials + rows * partial;
    member.logits = member.scores + rows * kContextTile;
  }
  tiles_.resize(chunk);
  items_ = std::make_unique<ItemCounter[]>(threads);
  own_tiles_.resize(threads);
  waited_ns_.resize(threads);
  work_.resize(threads);
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
  const TeamControl::Run done = run_team(
      [](void* context, int member) {
        Executor& executor = *static_cast<Executor*>(context);
        executor.run_step(executor.members_[member]);
      },
      this);
  control_.observe(now_ns(), done);
  now_ = {};
  return {};
}

// Runs a task of one step on the team, or on this thread alone while others keep the rest of it from running.
TeamControl::Run Executor::run_team(ThreadPool::Task task, void* context) {
  ThreadPool& pool = runtime_->pool;
  const int64_t begin = now_ns(), slept = pool.slept_ns();
  const int32_t num_tokens = now_.batch->num_tokens();
  const bool is_alone = control_.is_alone(begin, num_tokens);
  team_size_ = is_alone ? 1 : pool.size();
  const bool is_by_panels = !is_alone && sharing_for(num_tokens) != Sharing::kTokens;
  if (is_by_panels) {
    by_panels_.update(begin);
    watch_members(begin);
  }
  pool.run(task, context, is_alone);
  const int64_t end = now_ns();
  if (is_by_panels) {
    for (int i = 0; i < team_size_; ++i) work_[i].amount = by_panels_.part_of(i);
    observe_members(by_panels_, end);
  }
  return {num_tokens, 1, end - begin, pool.slept_ns() - slept};
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
  // Chunks of equal size: a last one of few tokens would read all weights for them.
  const int32_t num_chunks = (num_tokens - 1) / chunk_tokens_ + 1;
  const int32_t chunk = static_cast<int32_t>(round_up((num_tokens - 1) / num_chunks + 1, kTileTokens));
  for (int32_t begin = 0; begin < num_tokens; begin += chunk) {
    const int32_t count = std::min(chunk, num_tokens - begin);
    if (member.index == 0) begin_chunk(begin, count);
    if (sharing_for(count) == Sharing::kTokens) pool.barrier(member.index);  // shares and tiles are read before any other
    member.fetched_attend = -1;
    member.part = body_part(count, member);
    run_plan(body_, body_counters_, {begin, count}, member);
    pool.barrier(member.index);  // shares of tokens differ between chunks, and in the head
    if (member.index == 0) end_chunk();
  }
  for (int32_t begin = 0; begin < num_rows; begin += kSlabRows) {
    run_head({begin, std::min(kSlabRows, num_rows - begin)}, member);
  }
}

void Executor::run_plan(const Plan& plan, std::vector<StageCounter>& counters, const Window& window, Member& member) {
  const bool is_counted = is_counting_ && member.index == 0;
  Lap lap(is_counted);
  const std::vector<Stage>& stages = plan.stages;
  const size_t num_stages = plan.logits_stage;
  for (size_t i = 0; i < num_stages;) {
    size_t end = i + 1;
    if (is_token_stage(stages[i].kind)) {
      while (end < num_stages && is_token_stage(stages[end].kind)) ++end;
      run_token_stages(plan, i, end, counters, window, member, lap);
    } else if (stages[i].kind == StageKind::kMultiply) {
      run_multiply(stages[i], window, member);
    } else {
      run_attend(stages[i], member);
    }
    note_progress(member);
    if (is_counted && !is_token_stage(stages[i].kind)) lap.add_to(counters[i].work_ns);
    if (end < num_stages && needs_barrier(plan, i, end, member.part)) runtime_->pool.barrier(member.index);
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

void Executor::note_progress(const Member& member) {
  if (member.index != 0) return;
  const std::atomic_ref<int64_t> progress(*progress_);
  progress.store(progress.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
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


}  // namespace octavo
