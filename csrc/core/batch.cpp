#include "core/batch.h"

#include <algorithm>
#include <string>

#include "kernels/step_table.h"

namespace octavo {
namespace {

Status out_of_range(const char* what, size_t index, int64_t value, int64_t limit) {
  return Status::invalid(std::string(what) + "[" + std::to_string(index) + "] is " + std::to_string(value) +
                         ", not in 0 .. " + std::to_string(limit - 1));
}

Status check_range(std::span<const int32_t> values, int32_t limit, const char* what) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] < 0 || values[i] >= limit) return out_of_range(what, i, values[i], limit);
  }
  return {};
}

Status check_size(size_t size, size_t wanted, const char* what) {
  if (size == wanted) return {};
  return Status::invalid(std::string(what) + " has " + std::to_string(size) + " elements, not " +
                         std::to_string(wanted));
}

// start[0] = 0, never falling, last = num_items.
Status check_starts(std::span<const int32_t> start, size_t num_lists, size_t num_items, const char* what) {
  if (Status status = check_size(start.size(), num_lists + 1, what); !status.ok()) return status;
  const bool is_rising = std::is_sorted(start.begin(), start.end());
  if (start.front() != 0 || !is_rising || static_cast<size_t>(start.back()) != num_items) {
    return Status::invalid(std::string(what) + " does not rise from 0 to " + std::to_string(num_items));
  }
  return {};
}

Status check_request(const BatchView& batch, int32_t request, const StepLimits& limits) {
  const int32_t begin = batch.query_start[request], end = batch.query_start[request + 1];
  const int32_t seq_len = batch.seq_lens[request];
  const std::string name = "request " + std::to_string(request);
  if (begin == end) return {};
  if (seq_len < end - begin || (seq_len - 1) / kBlockSize >= std::min(batch.table_width, limits.num_blocks)) {
    return Status::invalid(name + ": seq_lens is " + std::to_string(seq_len) + " with " + std::to_string(end - begin) +
                           " tokens, a table of " + std::to_string(batch.table_width) + " and a pool of " +
                           std::to_string(limits.num_blocks) + " blocks");
  }
  const auto table = batch.block_tables.subspan(static_cast<size_t>(request) * batch.table_width, batch.table_width);
  const auto used = table.first((seq_len - 1) / kBlockSize + 1);
  if (Status status = check_range(used, limits.num_blocks, "block_tables"); !status.ok()) return status;
  for (int32_t t = begin; t < end; ++t) {
    const int32_t position = seq_len - (end - t);
    if (batch.positions[t] != position) {
      return Status::invalid(name + ": positions[" + std::to_string(t) + "] is " + std::to_string(batch.positions[t]) +
                             ", its place in the sequence is " + std::to_string(position));
    }
    const int64_t slot = int64_t{table[position / kBlockSize]} * kBlockSize + position % kBlockSize;
    if (batch.slots[t] != slot) {
      return Status::invalid(name + ": slots[" + std::to_string(t) + "] is " + std::to_string(batch.slots[t]) +
                             ", its block table says " + std::to_string(slot));
    }
  }
  return {};
}

}  // namespace

Status check_batch(const BatchView& batch, const StepLimits& limits) {
  const size_t num_tokens = batch.token_ids.size(), num_requests = batch.seq_lens.size();
  if (num_tokens == 0) return Status::invalid("a step without tokens");
  if (num_tokens > static_cast<size_t>(limits.max_tokens)) {
    return Status::invalid(std::to_string(num_tokens) + " tokens in a step compiled for " +
                           std::to_string(limits.max_tokens));
  }
  if (Status status = check_size(batch.positions.size(), num_tokens, "positions"); !status.ok()) return status;
  if (Status status = check_size(batch.slots.size(), num_tokens, "slots"); !status.ok()) return status;
  if (Status status = check_size(batch.block_tables.size(), num_requests * batch.table_width, "block_tables");
      !status.ok()) {
    return status;
  }
  if (Status status = check_starts(batch.query_start, num_requests, num_tokens, "query_start"); !status.ok()) {
    return status;
  }
  if (Status status = check_range(batch.token_ids, limits.num_token_ids, "token_ids"); !status.ok()) return status;
  for (int32_t r = 0; r < batch.num_requests(); ++r) {
    if (Status status = check_request(batch, r, limits); !status.ok()) return status;
  }
  if (Status status = check_range(batch.output_rows, batch.num_tokens(), "output_rows"); !status.ok()) return status;
  const auto& rows = batch.output_rows;
  if (std::adjacent_find(rows.begin(), rows.end(), std::greater_equal<>()) != rows.end()) {
    return Status::invalid("output_rows do not rise");
  }
  return {};
}

Status check_sample(const SampleView& sample, const ResultView& result, int32_t num_rows, const StepLimits& limits) {
  const size_t rows = num_rows;
  const std::pair<size_t, const char*> sizes[] = {
      {sample.temperature.size(), "temperature"},
      {sample.top_k.size(), "top_k"},
      {sample.top_p.size(), "top_p"},
      {sample.min_p.size(), "min_p"},
      {sample.typical_p.size(), "typical_p"},
      {sample.repetition_penalty.size(), "repetition_penalty"},
      {sample.presence_penalty.size(), "presence_penalty"},
      {sample.frequency_penalty.size(), "frequency_penalty"},
      {sample.seeds.size(), "seeds"},
      {sample.choices.size(), "choices"},
      {sample.positions.size(), "sample positions"},
      {sample.is_scored.size(), "is_scored"},
      {sample.targets.size(), "targets"},
      {sample.num_logprobs.size(), "num_logprobs"},
      {result.token_ids.size(), "result token_ids"},
      {result.logprobs.size(), "result logprobs"},
      {result.ranks.size(), "result ranks"},
  };
  for (const auto& [size, what] : sizes) {
    if (Status status = check_size(size, rows, what); !status.ok()) return status;
  }
  const size_t top_size = rows * result.top_width;
  if (Status status = check_size(result.top_ids.size(), top_size, "result top_ids"); !status.ok()) return status;
  if (Status status = check_size(result.top_logprobs.size(), top_size, "result top_logprobs"); !status.ok()) {
    return status;
  }
  for (size_t i = 0; i < rows; ++i) {
    if (sample.num_logprobs[i] < -1 || sample.num_logprobs[i] > result.top_width) {
      return out_of_range("num_logprobs", i, sample.num_logprobs[i], int64_t{result.top_width} + 1);
    }
    if (sample.is_scored[i] && (sample.targets[i] < 0 || sample.targets[i] >= limits.vocab_size)) {
      return out_of_range("targets", i, sample.targets[i], limits.vocab_size);
    }
  }
  const struct {
    std::span<const int32_t> start, ids;
    const char* what;
  } lists[] = {{sample.bias_start, sample.bias_ids, "bias_ids"},
               {sample.seen_start, sample.seen_ids, "seen_ids"},
               {sample.made_start, sample.made_ids, "made_ids"}};
  for (const auto& list : lists) {
    if (Status status = check_starts(list.start, rows, list.ids.size(), list.what); !status.ok()) return status;
    if (Status status = check_range(list.ids, limits.vocab_size, list.what); !status.ok()) return status;
  }
  return check_size(sample.bias_values.size(), sample.bias_ids.size(), "bias_values");
}

Status check_decode(const BatchView& batch, const SampleView& sample, const DecodeRunView& run,
                    const StepLimits& limits) {
  const int32_t num_requests = batch.num_requests();
  if (run.num_steps < 1) return Status::invalid("num_steps must be at least 1");
  if (run.stop.size() != 1) return Status::invalid("stop is not [1]");
  if (batch.num_tokens() != num_requests || batch.num_rows() != num_requests) {
    return Status::invalid("a run of decode steps has one token and one output row per request");
  }
  const bool is_plain = sample.bias_ids.empty() && sample.seen_ids.empty() && sample.made_ids.empty();
  const bool is_scored = std::find(sample.is_scored.begin(), sample.is_scored.end(), true) != sample.is_scored.end();
  const bool has_logprobs = std::any_of(sample.num_logprobs.begin(), sample.num_logprobs.end(),
                                        [](int32_t n) { return n >= 0; });
  if (!is_plain || is_scored || has_logprobs) {
    return Status::invalid("a run of decode steps takes no log-probabilities, bias or penalties");
  }
  for (int32_t r = 0; r < num_requests; ++r) {
    const int64_t last_block = (int64_t{batch.seq_lens[r]} + run.num_steps - 2) / kBlockSize;
    if (last_block >= std::min(batch.table_width, limits.num_blocks)) {
      return Status::invalid("request " + std::to_string(r) + ": its block table does not reach " +
                             std::to_string(run.num_steps) + " steps");
    }
    const auto table = batch.block_tables.subspan(static_cast<size_t>(r) * batch.table_width, last_block + 1);
    if (Status status = check_range(table, limits.num_blocks, "block_tables"); !status.ok()) return status;
  }
  return check_starts(run.end_start, num_requests, run.end_ids.size(), "end_ids");
}

}  // namespace octavo
