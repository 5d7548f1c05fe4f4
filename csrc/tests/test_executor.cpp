// Steps of a small model: same bits for any thread count, chunking and batch; wrong batches are refused.
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/traits.h"
#include "model.h"

using namespace octavo_test;

namespace {

constexpr int32_t kBlocks = 64;
constexpr int32_t kTop = 4;

std::unique_ptr<Executor> make(const KernelTable* table, int num_threads, Precision precision = Precision::kInt8) {
  auto runtime = std::make_shared<Runtime>(num_threads, table, precision);
  Program program(runtime->weights);
  record_model(*runtime, program);
  std::unique_ptr<Executor> executor;
  const KVShape shape{2, kKvHeads, kHeadDim, KVType::F16};
  CHECK(Executor::create(runtime, program, shape, kBlocks, 400, &executor).ok());
  executor->kv().fill(std::numeric_limits<float>::quiet_NaN());
  // Three members begin with unequal parts.
  if (num_threads == 3) executor->set_parts(std::array{3.0, 1.0, 2.0});
  return executor;
}

std::vector<int32_t> table_from(int32_t first, int32_t count) {
  std::vector<int32_t> table;
  for (int32_t i = 0; i < count; ++i) table.push_back((first + 7 * i) % kBlocks);
  return table;
}

Step run(Executor& executor, const std::vector<Chunk>& chunks, bool all_rows = false) {
  Step step(chunks, all_rows);
  step.want_top(kTop);
  const Status status = executor.execute(step.batch(), step.sample(), step.result());
  if (!CHECK(status.ok())) std::fprintf(stderr, "%s\n", status.message().c_str());
  return step;
}

bool same_row(const Step& a, size_t i, const Step& b, size_t j) {
  CHECK(std::isfinite(a.top_logprobs[i * kTop]));
  return a.tokens[i] == b.tokens[j] &&
         std::memcmp(&a.top_logprobs[i * kTop], &b.top_logprobs[j * kTop], kTop * sizeof(float)) == 0;
}

void test_same_bits(const KernelTable* table, Precision precision) {
  const auto reference = make(table, 1, precision);
  const std::vector<int32_t> ids = random_ids(300, 3);
  const Step expected = run(*reference, {{ids, 0, table_from(0, 19)}}, true);
  for (int num_threads : {1, 2, 3}) {
    const auto executor = make(table, num_threads, precision);
    const Step whole = run(*executor, {{ids, 0, table_from(5, 19)}}, true);
    for (size_t row = 0; row < ids.size(); ++row) CHECK(same_row(whole, row, expected, row));
    // In chunks, beside another sequence, block tables that share nothing.
    executor->kv().fill(std::numeric_limits<float>::quiet_NaN());
    int32_t start = 0;
    for (int32_t size : {1, 1, 14, 1, 30, 100, 3, 150}) {
      const std::vector<int32_t> part(ids.begin() + start, ids.begin() + start + size);
      const Step step = run(*executor, {{random_ids(9, 4), 0, {63}}, {part, start, table_from(3, 19)}});
      start += size;
      CHECK(same_row(step, 1, expected, start - 1));
    }
    CHECK(start == 300);
  }
}

// Many requests that decode, of equal length or one of them far longer: together as alone.
void test_many_that_decode(const KernelTable* table) {
  for (const int32_t longest : {9, 200}) {
    std::vector<Chunk> prompts, last;
    int32_t block = 0;
    for (int32_t r = 0; r < 29; ++r) {
      const int32_t length = r == 2 ? longest : 9;
      std::vector<int32_t> blocks;
      for (int32_t i = 0; i <= length / kBlockSize; ++i) blocks.push_back(block++);
      const std::vector<int32_t> ids = random_ids(length + 1, 20 + r);
      prompts.push_back({{ids.begin(), ids.end() - 1}, 0, blocks});
      last.push_back({{ids.back()}, length, blocks});
    }
    CHECK(block <= kBlocks);
    const auto alone = make(table, 1);
    std::vector<Step> expected;
    for (size_t r = 0; r < last.size(); ++r) {
      run(*alone, {prompts[r]});
      expected.push_back(run(*alone, {last[r]}));
    }
    for (int num_threads : {1, 2, 3}) {
      const auto executor = make(table, num_threads);
      for (const Chunk& prompt : prompts) run(*executor, {prompt});
      const Step together = run(*executor, last);
      for (size_t r = 0; r < last.size(); ++r) CHECK(same_row(together, r, expected[r], 0));
      // The same tokens where nothing but the greatest logit is wanted, of many rows and of few.
      for (const size_t count : {last.size(), size_t{3}}) {
        Step greedy(std::vector<Chunk>(last.begin(), last.begin() + static_cast<ptrdiff_t>(count)));
        std::fill(greedy.num_logprobs.begin(), greedy.num_logprobs.end(), -1);
        CHECK(executor->execute(greedy.batch(), greedy.sample(), greedy.result()).ok());
        for (size_t r = 0; r < count; ++r) CHECK(greedy.tokens[r] == expected[r].tokens[0]);
      }
    }
  }
}

void test_copied_blocks(const KernelTable* table) {
  const auto executor = make(table, 2);
  const std::vector<int32_t> ids = random_ids(20, 6);
  const Step expected = run(*executor, {{ids, 0, {1, 2}}});
  const std::pair<int32_t, int32_t> pairs[] = {{1, 9}, {2, 8}};
  CHECK(executor->kv().copy(pairs).ok());
  CHECK(same_row(run(*executor, {{{ids[19]}, 19, {9, 8}}}), 0, expected, 0));
  const std::pair<int32_t, int32_t> wrong[] = {{1, kBlocks}};
  CHECK(!executor->kv().copy(wrong).ok());
}

void test_refusals(const KernelTable* table) {
  const auto executor = make(table, 1);
  const std::vector<Chunk> chunks = {{random_ids(20, 5), 0, {4, 6}}};
  const auto refused = [&](auto change) {
    Step step(chunks);
    change(step);
    return executor->execute(step.batch(), step.sample(), step.result()).code() == StatusCode::kInvalid;
  };
  CHECK(!refused([](Step&) {}));
  CHECK(refused([](Step& s) { s.token_ids[3] = kVocab; }));
  CHECK(refused([](Step& s) { s.positions[3] = 4; }));
  CHECK(refused([](Step& s) { s.slots[3] += 16; }));
  CHECK(refused([](Step& s) { s.block_tables[1] = kBlocks; }));
  CHECK(refused([](Step& s) { s.seq_lens[0] = 2000; }));
  CHECK(refused([](Step& s) { s.query_start[1] = 19; }));
  CHECK(refused([](Step& s) { s.output_rows[0] = -1; }));
  CHECK(refused([](Step& s) { s.slots.pop_back(); }));
  CHECK(refused([](Step& s) { s.seeds.clear(); }));
  CHECK(refused([](Step& s) { s.made_start[1] = 1; }));
  CHECK(refused([](Step& s) { s.num_logprobs[0] = 1; }));  // no room in the result
  // A table that repeats blocks cannot make a sequence longer than the pool.
  Step step({{{1}, 0, std::vector<int32_t>(kBlocks + 1, 0)}});
  step.seq_lens[0] = kBlocks * kBlockSize + 1;
  step.positions[0] = kBlocks * kBlockSize;
  CHECK(executor->execute(step.batch(), step.sample(), step.result()).code() == StatusCode::kInvalid);
}

}  // namespace

int main() {
  fetching_costs_products = false;  // whatever processor this is: what is fetched changes no bit, but may be out of bounds
  for (const KernelTable* table : supported_tables(probe_features())) {
    test_same_bits(table, Precision::kInt8);
    test_same_bits(table, Precision::kInt8x2);
    test_many_that_decode(table);
    test_copied_blocks(table);
    test_refusals(table);
  }
  return octavo_test::check_result();
}
