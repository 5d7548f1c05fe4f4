// The sampler of every table: Philox's known answers, and each filter against a definition that sorts everything.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/philox.h"
#include "core/sampler.h"
#include "model.h"

using namespace octavo_test;

namespace {

// Source: the known-answer file of Salmon et al.'s Random123.
static_assert(philox4x32({0, 0, 0, 0}, {0, 0}) ==
              std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
static_assert(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
              std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});

// Probabilities over all ids; 0 where filtered.
using Probs = std::vector<double>;

void normalise(Probs& probs) {
  const double total = std::accumulate(probs.begin(), probs.end(), 0.0);
  for (double& p : probs) p /= total;
}

// Keeps ids in rising order of key until their probabilities reach `mass`, or `limit` of them.
void keep(Probs& probs, const std::vector<double>& keys, double mass, size_t limit) {
  std::vector<int> order(probs.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return keys[a] < keys[b]; });
  Probs kept(probs.size());
  double sum = 0.0;
  for (size_t i = 0; i < std::min(limit, order.size()); ++i) {
    kept[order[i]] = probs[order[i]];
    sum += probs[order[i]];
    if (sum >= mass) break;
  }
  probs = kept;
  normalise(probs);
}

int defined(const std::vector<float>& logits, const Step& s, size_t row) {
  const float max = *std::max_element(logits.begin(), logits.end());
  if (s.temperature[row] == 0.0f) {
    return static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  Probs probs;
  for (float x : logits) probs.push_back(std::exp((double{x} - max) / s.temperature[row]));
  normalise(probs);
  const auto falling = [&] {
    std::vector<double> keys;
    for (double p : probs) keys.push_back(-p);
    return keys;
  };
  if (s.min_p[row] > 0) {
    const double bound = s.min_p[row] * *std::max_element(probs.begin(), probs.end());
    for (double& p : probs) p = p >= bound ? p : 0.0;
    normalise(probs);
  }
  if (s.top_k[row] > 0) keep(probs, falling(), 2.0, s.top_k[row]);
  if (s.top_p[row] < 1) keep(probs, falling(), s.top_p[row], probs.size());
  if (s.typical_p[row] < 1) {
    double entropy = 0.0;
    for (double p : probs) entropy -= p > 0 ? p * std::log(p) : 0.0;
    std::vector<double> keys;
    for (double p : probs) keys.push_back(p > 0 ? std::abs(-std::log(p) - entropy) : INFINITY);
    keep(probs, keys, s.typical_p[row], probs.size());
  }
  const double u = uniform(s.seeds[row], s.choices[row], s.sample_positions[row]);
  double sum = 0.0;
  int last = -1;
  for (size_t i = 0; i < probs.size(); ++i) {
    if (probs[i] <= 0) continue;
    sum += probs[i];
    last = static_cast<int>(i);
    if (sum > u) break;
  }
  return last;
}

struct Sampling {
  float temperature;
  int top_k;
  float top_p, min_p, typical_p;
};

void test_against_definition(const StepKernels& kernels, int32_t vocab, float spread) {
  constexpr int32_t kRows = 12;
  std::mt19937 random(vocab);
  std::normal_distribution<float> normal(0.0f, spread);
  const size_t stride = vocab + 3;
  std::vector<float> logits(kRows * stride);
  for (float& x : logits) x = normal(random);
  Sampler sampler;
  CHECK(Sampler::create(kernels, vocab, kRows, 2, &sampler).ok());
  const LogitSlab slab{logits.data(), stride, 0, kRows};
  int num_different = 0;
  for (const Sampling& p : {Sampling{0, 0, 1, 0, 1}, Sampling{0.8f, 0, 1, 0, 1}, Sampling{1, 10, 1, 0, 1},
                            Sampling{1, 3000, 1, 0, 1}, Sampling{1, 0, 0.9f, 0, 1}, Sampling{2, 0, 0.999f, 0, 1},
                            Sampling{1, 0, 1, 0.05f, 1}, Sampling{1, 0, 1, 0, 0.5f}, Sampling{1, 0, 1, 1.0f, 1},
                            Sampling{1.3f, 40, 0.8f, 0.01f, 0.9f}}) {
    Step step({{std::vector<int32_t>(kRows, 1), 0, {0}}}, true);
    step.want_top(5);
    std::fill(step.temperature.begin(), step.temperature.end(), p.temperature);
    std::fill(step.top_k.begin(), step.top_k.end(), p.top_k);
    std::fill(step.top_p.begin(), step.top_p.end(), p.top_p);
    std::fill(step.min_p.begin(), step.min_p.end(), p.min_p);
    std::fill(step.typical_p.begin(), step.typical_p.end(), p.typical_p);
    for (int32_t r = 0; r < kRows; ++r) step.seeds[r] = 1000 + r;
    for (int member : {0, 1}) sampler.summarize(slab, step.sample(), member, 2);
    for (int member : {0, 1}) sampler.choose(slab, step.sample(), step.result(), member, 2);
    for (int32_t r = 0; r < kRows; ++r) {
      const std::vector<float> row(&logits[r * stride], &logits[r * stride] + vocab);
      num_different += step.tokens[r] != defined(row, step, r);
      std::vector<float> sorted = row;
      std::sort(sorted.begin(), sorted.end(), std::greater<>());
      const int rank = static_cast<int>(std::find(sorted.begin(), sorted.end(), row[step.tokens[r]]) - sorted.begin());
      CHECK(step.ranks[r] == rank + 1);
      for (int i = 0; i < 5; ++i) CHECK(row[step.top_ids[r * 5 + i]] == sorted[i]);
      double sum = 0.0;
      for (float x : row) sum += std::exp(double{x} - sorted[0]);
      CHECK(std::abs(step.logprobs[r] - (row[step.tokens[r]] - sorted[0] - std::log(sum))) < 1e-5);
    }
  }
  CHECK(num_different <= 1);  // u on a rounding edge
}

void test_penalties(const StepKernels& kernels) {
  Sampler sampler;
  CHECK(Sampler::create(kernels, 6, 1, 1, &sampler).ok());
  const float logits[6] = {1.0f, 2.0f, 3.0f, -1.0f, 2.5f, 0.0f};
  Step step({{{1}, 0, {0}}});
  const auto token = [&] {
    sampler.summarize({logits, 6, 0, 1}, step.sample(), 0, 1);
    sampler.choose({logits, 6, 0, 1}, step.sample(), step.result(), 0, 1);
    return step.tokens[0];
  };
  CHECK(token() == 2);
  step.seen_ids = {2, 2, 3, 2};
  step.seen_start = {0, 4};
  step.repetition = {1.25f};  // 3 -> 2.4, once
  CHECK(token() == 4);
  step.repetition = {1.0f};
  step.made_ids = {2, 2, 4};
  step.made_start = {0, 3};
  step.frequency = {0.3f};  // 3 -> 2.4, 2.5 -> 2.2
  CHECK(token() == 2);
  step.frequency = {0.6f};  // 1.8, 1.9
  CHECK(token() == 1);
  step.frequency = {0.0f};
  step.presence = {2.0f};
  CHECK(token() == 1);
  step.bias_ids = {1, 5, 5};
  step.bias_values = {-std::numeric_limits<float>::infinity(), 1.0f, 1.0f};
  step.bias_start = {0, 3};
  CHECK(token() == 5);
  CHECK(step.ranks[0] == 5);  // of the raw logits
  step.is_scored[0] = true;
  step.targets = {3};
  CHECK(token() == 3);
}

// Pieces of rows, offered by two members in any order, choose what whole rows do: of equal logits the lowest id.
void test_offers(const StepKernels& kernels) {
  constexpr int32_t kVocab = 500, kRows = 6, kPiece = 48;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  std::mt19937 random(3);
  std::vector<float> logits(kRows * kVocab);
  for (float& x : logits) x = static_cast<float>(random() % 40);  // each greatest value many times
  std::fill_n(&logits[1 * kVocab], kVocab, kNan);
  std::fill_n(&logits[2 * kVocab], kVocab, -kInf);
  logits[3 * kVocab + 70] = logits[3 * kVocab + 400] = kInf;
  for (int32_t i = 0; i < kVocab; i += 2) logits[4 * kVocab + i] = kNan;
  Sampler sampler;
  CHECK(Sampler::create(kernels, kVocab, kRows, 2, &sampler).ok());
  Step step({{std::vector<int32_t>(kRows, 1), 0, {0}}}, true);
  std::fill(step.num_logprobs.begin(), step.num_logprobs.end(), -1);
  const LogitSlab slab{logits.data(), kVocab, 0, kRows};
  for (int member : {0, 1}) sampler.summarize(slab, step.sample(), member, 2);
  for (int member : {0, 1}) sampler.choose(slab, step.sample(), step.result(), member, 2);
  const std::vector<int32_t> expected = step.tokens;
  CHECK(expected[1] == 0 && expected[2] == 0 && expected[3] == 70);
  std::vector<std::pair<int32_t, int32_t>> pieces;
  for (int32_t row = 0; row < kRows; ++row) {
    for (int32_t id = 0; id < kVocab; id += kPiece) pieces.emplace_back(row, id);
  }
  for (int round = 0; round < 20; ++round) {
    std::shuffle(pieces.begin(), pieces.end(), random);
    step.tokens.assign(kRows, -1);
    for (int member : {0, 1}) sampler.begin_offers(member, kRows);
    for (const auto& [row, id] : pieces) {
      sampler.offer(static_cast<int>(random() % 2), row, id, &logits[row * kVocab + id], std::min(kPiece, kVocab - id));
    }
    sampler.choose_greatest(0, kRows, 2, step.result());
    CHECK(step.tokens == expected);
  }
}

void test_who_wants_only_the_greatest() {
  const auto wants = [](auto change) {
    Step step({{{1, 2}, 0, {0}}}, true);
    std::fill(step.num_logprobs.begin(), step.num_logprobs.end(), -1);
    change(step);
    return Sampler::wants_greatest_only(step.sample(), 0, 2);
  };
  CHECK(wants([](Step&) {}));
  CHECK(!wants([](Step& s) { s.temperature[1] = 0.5f; }));
  CHECK(!wants([](Step& s) { s.num_logprobs[1] = 0; }));
  CHECK(!wants([](Step& s) { s.repetition[0] = 1.1f; }));
  CHECK(!wants([](Step& s) { s.presence[0] = 1.0f; }));
  CHECK(!wants([](Step& s) { s.frequency[0] = 1.0f; }));
  CHECK(!wants([](Step& s) { s.is_scored[1] = true; }));
  CHECK(!wants([](Step& s) { s.bias_ids = {3}, s.bias_values = {1.0f}, s.bias_start = {0, 0, 1}; }));
}

void test_odd_numbers(const StepKernels& kernels) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  Sampler sampler;
  CHECK(Sampler::create(kernels, 40, 1, 1, &sampler).ok());
  for (float filling : {kNan, kInf, -kInf, 0.0f}) {
    for (float other : {kNan, kInf, -kInf}) {
      std::vector<float> logits(40, filling);
      logits[33] = other;
      for (const Sampling& p :
           {Sampling{0, 0, 1, 0, 1}, Sampling{1, 0, 1, 0, 1}, Sampling{1, 3, 0.5f, 0, 1},
            Sampling{1, 0, 0.5f, 0, 0.5f}, Sampling{1, 0, 1, 0.5f, 1}, Sampling{1e-30f, 0, 1, 0, 1}}) {
        Step step({{{1}, 0, {0}}});
        step.want_top(2);
        step.temperature = {p.temperature};
        step.top_k = {p.top_k};
        step.top_p = {p.top_p};
        step.min_p = {p.min_p};
        step.typical_p = {p.typical_p};
        sampler.summarize({logits.data(), 40, 0, 1}, step.sample(), 0, 1);
        sampler.choose({logits.data(), 40, 0, 1}, step.sample(), step.result(), 0, 1);
        CHECK(step.tokens[0] >= 0 && step.tokens[0] < 40);
      }
    }
  }
}

}  // namespace

int main() {
  test_who_wants_only_the_greatest();
  for (const KernelTable* table : supported_tables(probe_features())) {
    for (int32_t vocab : {5, 300, 4096, 9001}) test_against_definition(*table->step, vocab, 2.0f);
    test_against_definition(*table->step, 9001, 0.1f);  // nearly flat: filters keep thousands
    test_penalties(*table->step);
    test_offers(*table->step);
    test_odd_numbers(*table->step);
  }
  return octavo_test::check_result();
}
