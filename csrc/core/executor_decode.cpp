// Runs of decode steps: what a step draws is the input of the next, without a way back to the caller in between.

#include <algorithm>
#include <atomic>

#include "core/executor.h"

namespace octavo {

Status Executor::decode(const BatchView& batch, const SampleView& sample, const DecodeRunView& run,
                        std::span<int32_t> tokens, int32_t* num_done) {
  if (Status status = check_batch(batch, limits_); !status.ok()) return status;
  DecodeState state{&run, batch, sample, {}};
  const size_t num_rows = batch.num_rows();
  state.result.logprobs = std::span(decode_.logprobs).first(num_rows);
  state.result.ranks = std::span(decode_.ranks).first(num_rows);
  state.result.token_ids = tokens.first(std::min(tokens.size(), num_rows));
  if (Status status = check_sample(sample, state.result, batch.num_rows(), limits_); !status.ok()) return status;
  if (Status status = check_decode(batch, sample, run, limits_); !status.ok()) return status;
  if (tokens.size() != run.num_steps * num_rows) return Status::invalid("tokens is not [num_steps, R]");
  begin_decode(batch, sample, tokens, state);
  now_ = {&state.batch, &state.sample, &state.result};
  struct Context {
    Executor* executor;
    DecodeState* state;
  } context{this, &state};
  TeamControl::Run done = run_team(
      [](void* pointer, int member) {
        const auto& [executor, its_state] = *static_cast<Context*>(pointer);
        executor->run_decode(*its_state, executor->members_[member]);
      },
      &context);
  done.num_steps = state.num_done;
  control_.observe(now_ns(), done);
  now_ = {};
  *num_done = state.num_done;
  return {};
}

// Copies what changes from step to step.
void Executor::begin_decode(const BatchView& batch, const SampleView& sample, std::span<int32_t> tokens,
                            DecodeState& state) {
  const auto copy = [](std::span<const int32_t> from, std::vector<int32_t>& to, std::span<const int32_t>& view) {
    std::copy(from.begin(), from.end(), to.begin());
    view = std::span(to).first(from.size());
  };
  copy(batch.token_ids, decode_.token_ids, state.batch.token_ids);
  copy(batch.positions, decode_.positions, state.batch.positions);
  copy(batch.slots, decode_.slots, state.batch.slots);
  copy(batch.seq_lens, decode_.seq_lens, state.batch.seq_lens);
  copy(sample.positions, decode_.sample_positions, state.sample.positions);
  state.result.token_ids = tokens.first(batch.num_rows());
}

void Executor::run_decode(DecodeState& state, Member& member) {
  ThreadPool& pool = runtime_->pool;
  while (true) {
    run_step(member);
    pool.barrier(member.index);
    if (member.index == 0) advance_decode(state);
    pool.barrier(member.index);
    if (state.is_over) return;
  }
}

void Executor::advance_decode(DecodeState& state) {
  const DecodeRunView& run = *state.run;
  const std::span<int32_t> drawn = state.result.token_ids;
  ++state.num_done;
  const bool is_stopped = std::atomic_ref(run.stop.front()).load(std::memory_order_relaxed) != 0;
  state.is_over = state.num_done == run.num_steps || is_stopped;
  for (size_t r = 0; r < drawn.size(); ++r) {
    const int32_t token = drawn[r];
    const auto ends = run.end_ids.subspan(run.end_start[r], run.end_start[r + 1] - run.end_start[r]);
    state.is_over |= token >= limits_.num_token_ids || std::find(ends.begin(), ends.end(), token) != ends.end();
  }
  if (state.is_over) return;
  for (size_t r = 0; r < drawn.size(); ++r) {
    const int32_t position = ++decode_.positions[r];
    const int32_t block = state.batch.block_tables[r * state.batch.table_width + position / kBlockSize];
    decode_.token_ids[r] = drawn[r];
    decode_.slots[r] = block * kBlockSize + position % kBlockSize;
    ++decode_.seq_lens[r];
    ++decode_.sample_positions[r];
  }
  state.result.token_ids = {drawn.data() + drawn.size(), drawn.size()};
}

}  // namespace octavo
