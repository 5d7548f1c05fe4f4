// Views of one step's arrays (octavo.ops.protocol: Batch, SampleBatch, SampleResult), and their checks.
#pragma once

#include <cstdint>
#include <span>

#include "core/status.h"

namespace octavo {

struct BatchView {
  std::span<const int32_t> token_ids, positions, slots;  // [T]
  std::span<const int32_t> query_start;                  // [R + 1]
  std::span<const int32_t> seq_lens;                     // [R]
  std::span<const int32_t> block_tables;                 // [R, table_width]
  int32_t table_width = 0;
  std::span<const int32_t> output_rows;  // [K]

  int32_t num_tokens() const { return static_cast<int32_t>(token_ids.size()); }
  int32_t num_requests() const { return static_cast<int32_t>(seq_lens.size()); }
  int32_t num_rows() const { return static_cast<int32_t>(output_rows.size()); }
};

struct SampleView {
  std::span<const float> temperature, top_p, min_p, typical_p;
  std::span<const float> repetition_penalty, presence_penalty, frequency_penalty;
  std::span<const int32_t> top_k;
  std::span<const uint64_t> seeds;
  std::span<const int32_t> choices, positions;
  std::span<const bool> is_scored;
  std::span<const int32_t> targets, num_logprobs;
  std::span<const int32_t> bias_start, bias_ids;
  std::span<const float> bias_values;
  std::span<const int32_t> seen_start, seen_ids, made_start, made_ids;
};

struct ResultView {
  std::span<int32_t> token_ids;
  std::span<float> logprobs;
  std::span<int32_t> ranks;
  std::span<int32_t> top_ids;  // [K, top_width]
  std::span<float> top_logprobs;
  int32_t top_width = 0;
};

// Several decode steps in one call (octavo.ops.protocol: DecodeRun).
struct DecodeRunView {
  int32_t num_steps = 0;
  std::span<const int32_t> end_start, end_ids;  // [R + 1], ragged
  std::span<int32_t> stop;                      // [1]: other than 0 ends the run; other threads may write it meanwhile
};

struct StepLimits {
  int32_t max_tokens, num_blocks, num_token_ids, vocab_size;
};

// Everything that indexes memory is in range, and the arrays agree with each other.
Status check_batch(const BatchView& batch, const StepLimits& limits);
Status check_sample(const SampleView& sample, const ResultView& result, int32_t num_rows, const StepLimits& limits);
// What check_batch and check_sample leave open for a run of decode steps: one drawing row per request, nothing that
// depends on earlier outputs, block tables that reach far enough.
Status check_decode(const BatchView& batch, const SampleView& sample, const DecodeRunView& run,
                    const StepLimits& limits);

}  // namespace octavo
