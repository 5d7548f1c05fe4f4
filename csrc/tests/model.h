// A two-layer decoder recorded by hand, and steps over it: for the tests of program and executor.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "check.h"
#include "core/executor.h"
#include "cpu/dispatch.h"

namespace octavo_test {

using namespace octavo;

inline constexpr int32_t kVocab = 5000, kHidden = 64, kHeads = 4, kKvHeads = 2, kHeadDim = 16, kInner = 96;

inline int32_t random_matrix(Runtime& runtime, int32_t rows, int32_t cols, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 1.5f / std::sqrt(static_cast<float>(cols)));
  std::vector<float> values(static_cast<size_t>(rows) * cols);
  for (float& v : values) v = normal(random);
  int32_t id = -1;
  CHECK(runtime.weights
            .add_matrix(WeightFormat::F32, rows, cols, std::as_bytes(std::span(values)), runtime.pool, &id)
            .ok());
  return id;
}

inline int32_t constant_vector(Runtime& runtime, int32_t size, float value) {
  const std::vector<float> values(size, value);
  int32_t id = -1;
  CHECK(runtime.weights.add_vector(values, &id).ok());
  return id;
}

inline ValueId must(Status status, const ValueId& id) {
  if (!CHECK(status.ok())) std::fprintf(stderr, "%s\n", status.message().c_str());
  return id;
}

inline RopeSpec rope_spec() {
  return {kHeadDim, kHeadDim, RopeOrder::kNeox, {1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4}};
}

// Layer 1 has a window of 20 tokens.
inline void record_model(Runtime& runtime, Program& program) {
  ValueId x, y, q, k, v, gate, up;
  const int32_t table = random_matrix(runtime, kVocab, kHidden, 1);
  const int32_t norm = constant_vector(runtime, kHidden, 1.0f), bias = constant_vector(runtime, kInner, 0.1f);
  must(program.embed(table, 2.0f, &x), x);
  for (int32_t layer = 0; layer < 2; ++layer) {
    const int seed = 10 * layer + 2;
    must(program.rms_norm(x, norm, 1e-6f, &y), y);
    must(program.linear(y, random_matrix(runtime, kHeads * kHeadDim, kHidden, seed), -1, &q), q);
    must(program.linear(y, random_matrix(runtime, kKvHeads * kHeadDim, kHidden, seed + 1), -1, &k), k);
    must(program.linear(y, random_matrix(runtime, kKvHeads * kHeadDim, kHidden, seed + 2), -1, &v), v);
    must(program.rope(q, rope_spec(), &q), q);
    must(program.rope(k, rope_spec(), &k), k);
    const AttentionShape shape{kHeads, kKvHeads, kHeadDim, 0.25f, layer == 1 ? 20 : 0, 0.0f};
    must(program.attention(q, k, v, {layer, shape}, &y), y);
    must(program.linear(y, random_matrix(runtime, kHidden, kHeads * kHeadDim, seed + 3), -1, &y), y);
    must(program.add(x, y, &x), x);
    must(program.rms_norm(x, norm, 1e-6f, &y), y);
    must(program.linear(y, random_matrix(runtime, kInner, kHidden, seed + 4), bias, &gate), gate);
    must(program.linear(y, random_matrix(runtime, kInner, kHidden, seed + 5), -1, &up), up);
    must(program.gated(gate, up, Activation::kSilu, &y), y);
    must(program.linear(y, random_matrix(runtime, kHidden, kInner, seed + 6), -1, &y), y);
    must(program.add(x, y, &x), x);
  }
  must(program.end_body(x, &x), x);
  must(program.rms_norm(x, norm, 1e-6f, &x), x);
  must(program.linear(x, table, -1, &x), x);
  must(program.softcap(x, 30.0f, &x), x);
  CHECK(program.end_head(x).ok());
}

// One request's tokens of a step.
struct Chunk {
  std::vector<int32_t> token_ids;
  int32_t start;
  std::vector<int32_t> table;
};

// Arrays of a step, greedy unless changed, and room for its results.
struct Step {
  explicit Step(const std::vector<Chunk>& chunks, bool all_rows = false) {
    size_t width = 1;
    for (const Chunk& c : chunks) width = std::max(width, c.table.size());
    query_start.push_back(0);
    for (const Chunk& c : chunks) {
      for (size_t i = 0; i < c.token_ids.size(); ++i) {
        const int32_t position = c.start + static_cast<int32_t>(i);
        token_ids.push_back(c.token_ids[i]);
        positions.push_back(position);
        slots.push_back(c.table[position / kBlockSize] * kBlockSize + position % kBlockSize);
        if (all_rows || i + 1 == c.token_ids.size()) output_rows.push_back(static_cast<int32_t>(token_ids.size()) - 1);
      }
      query_start.push_back(static_cast<int32_t>(token_ids.size()));
      seq_lens.push_back(c.start + static_cast<int32_t>(c.token_ids.size()));
      block_tables.insert(block_tables.end(), c.table.begin(), c.table.end());
      block_tables.resize(seq_lens.size() * width);
    }
    table_width = static_cast<int32_t>(width);
    set_rows(output_rows.size());
  }

  void set_rows(size_t rows) {
    for (auto* zeros : {&temperature, &min_p, &presence, &frequency}) zeros->assign(rows, 0.0f);
    for (auto* ones : {&top_p, &typical_p, &repetition}) ones->assign(rows, 1.0f);
    for (auto* ints : {&top_k, &choices, &sample_positions, &targets, &num_logprobs}) ints->assign(rows, 0);
    for (auto* starts : {&bias_start, &seen_start, &made_start}) starts->assign(rows + 1, 0);
    seeds.assign(rows, 0);
    is_scored = std::make_unique<bool[]>(rows);
    tokens.assign(rows, -1);
    logprobs.assign(rows, 0.0f);
    ranks.assign(rows, 0);
  }
  void want_top(int32_t width) {
    top_width = width;
    std::fill(num_logprobs.begin(), num_logprobs.end(), width);
    top_ids.assign(tokens.size() * width, 0);
    top_logprobs.assign(tokens.size() * width, 0.0f);
  }

  BatchView batch() const {
    return {token_ids, positions, slots, query_start, seq_lens, block_tables, table_width, output_rows};
  }
  SampleView sample() const {
    return {temperature, top_p,       min_p,      typical_p,    repetition, presence,   frequency,
            top_k,       seeds,       choices,    sample_positions,
            {is_scored.get(), tokens.size()},
            targets,     num_logprobs, bias_start, bias_ids,    bias_values, seen_start, seen_ids,
            made_start,  made_ids};
  }
  ResultView result() { return {tokens, logprobs, ranks, top_ids, top_logprobs, top_width}; }

  std::vector<int32_t> token_ids, positions, slots, query_start, seq_lens, block_tables, output_rows;
  int32_t table_width = 0, top_width = 0;
  std::vector<float> temperature, top_p, min_p, typical_p, repetition, presence, frequency, bias_values;
  std::vector<int32_t> top_k, choices, sample_positions, targets, num_logprobs;
  std::vector<int32_t> bias_start, bias_ids, seen_start, seen_ids, made_start, made_ids;
  std::vector<uint64_t> seeds;
  std::unique_ptr<bool[]> is_scored;
  std::vector<int32_t> tokens, ranks, top_ids;
  std::vector<float> logprobs, top_logprobs;
};

inline std::vector<int32_t> random_ids(int32_t count, int seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % kVocab);
  return ids;
}

}  // namespace octavo_test
