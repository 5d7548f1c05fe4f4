// Attention kernels of every table: against double precision, rows sharing loads or not, NaN in what is not seen.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "core/kv_pool.h"
#include "cpu/dispatch.h"
#include "formats/f16.h"
#include "kv_values.h"

using namespace octavo;
using octavo_test::kKVTypes;
using octavo_test::rotated;
using octavo_test::stored_head;
using octavo_test::StoredHead;

namespace {

constexpr int32_t kPoolBlocks = 40;

struct Case {
  AttentionShape shape;
  KVType type;
  int32_t context;  // tokens in the cache
};

struct Fixture {
  Fixture(const Case& c, const StepKernels& kernels) : test(c), step(kernels) {
    const KVShape shape{2, c.shape.num_kv_heads, c.shape.head_dim, c.type};
    CHECK(KVPool::create(shape, kPoolBlocks, &pool).ok());
    pool.fill(std::numeric_limits<float>::quiet_NaN());
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (int32_t i = 0; i < kPoolBlocks; ++i) table.push_back((i * 17 + 5) % kPoolBlocks);
    const size_t kv_width = size_t{1} * c.shape.num_kv_heads * c.shape.head_dim;
    keys.resize(c.context * kv_width);
    values.resize(c.context * kv_width);
    queries.resize(size_t{1} * c.context * c.shape.num_heads * c.shape.head_dim);
    for (auto* array : {&keys, &values, &queries}) {
      for (float& x : *array) x = normal(random);
    }
    for (int32_t t = 0; t < c.context; ++t) {
      const int32_t slot = table[t / kBlockSize] * kBlockSize + t % kBlockSize;
      step.write_kv(pool.layer(1), {&keys[t * kv_width], 0, &values[t * kv_width], 0}, &slot, 1);
    }
  }

  size_t q_width() const { return size_t{1} * test.shape.num_heads * test.shape.head_dim; }

  // Outputs of the tokens [first, first + count) that are one query tile -> [count, heads * head_dim].
  std::vector<float> attend(int32_t first, int32_t count) {
    const AttentionShape& shape = test.shape;
    const int32_t group = shape.num_heads / shape.num_kv_heads, rows = count * group;
    const size_t stride = partial_floats(shape.head_dim);
    std::vector<float> states(rows * stride), partials(rows * stride), scratch(rows * kContextTile);
    std::vector<float> out(count * q_width());
    const QueryTile tile{&queries[first * q_width()], q_width(), count, first, table.data()};
    for (int32_t head = 0; head < shape.num_kv_heads; ++head) {
      std::fill(states.begin(), states.end(), 0.0f);
      for (int32_t r = 0; r < rows; ++r) states[r * stride] = -std::numeric_limits<float>::infinity();
      for (int32_t context = 0; context <= (first + count - 1) / kContextTile; ++context) {
        const KeysAhead ahead{&table[context % 4], context % 3, (head + 1) % shape.num_kv_heads};
        step.attend(pool.layer(1), shape, tile, head, context, ahead, partials.data(), scratch.data());
        step.merge(partials.data(), rows, shape.head_dim, states.data());
      }
      for (int32_t r = 0; r < rows; ++r) {
        step.finish(&states[r * stride], shape.head_dim,
                    &out[(r / group) * q_width() + (head * group + r % group) * shape.head_dim]);
      }
    }
    return out;
  }

  std::vector<StoredHead> stored(int32_t kv_head) const {
    std::vector<StoredHead> out;
    for (int32_t t = 0; t < test.context; ++t) {
      out.push_back(stored_head(pool.layer(1), table[t / kBlockSize] * kBlockSize + t % kBlockSize, kv_head));
    }
    return out;
  }

  // Over what is stored. heads: of every kv head.
  std::vector<double> expected(const std::vector<std::vector<StoredHead>>& heads, int32_t position) const {
    const AttentionShape& shape = test.shape;
    const int32_t group = shape.num_heads / shape.num_kv_heads, dim = shape.head_dim;
    const int32_t first = shape.window > 0 ? std::max(0, position - shape.window + 1) : 0;
    std::vector<double> out(q_width());
    for (int32_t h = 0; h < shape.num_heads; ++h) {
      const float* row = &queries[position * q_width() + h * dim];
      const std::vector<double> q =
          test.type == KVType::kInt4 ? rotated(row, dim) : std::vector<double>(row, row + dim);
      std::vector<double> weights;
      double total = 0.0;
      for (int32_t t = first; t <= position; ++t) {
        double score = 0.0;
        for (int32_t d = 0; d < dim; ++d) score += q[d] * heads[h / group][t].key[d];
        score *= shape.scale;
        if (shape.softcap > 0) score = shape.softcap * std::tanh(score / shape.softcap);
        weights.push_back(std::exp(score));
        total += weights.back();
      }
      for (int32_t t = first; t <= position; ++t) {
        for (int32_t d = 0; d < dim; ++d) {
          out[h * dim + d] += weights[t - first] / total * heads[h / group][t].value[d];
        }
      }
    }
    return out;
  }

  Case test;
  const StepKernels& step;
  KVPool pool;
  std::vector<int32_t> table;
  std::vector<float> keys, values, queries;
};

void test_case(const KernelTable& table, const Case& c) {
  Fixture fixture(c, *table.step);
  const size_t width = fixture.q_width();
  std::vector<std::vector<StoredHead>> heads;
  for (int32_t h = 0; h < c.shape.num_kv_heads; ++h) heads.push_back(fixture.stored(h));
  for (int32_t position : {0, 1, 15, 16, 127, 128, 129, 200, c.context - 1}) {
    if (position >= c.context) continue;
    const std::vector<float> out = fixture.attend(position, 1);
    const std::vector<double> expected = fixture.expected(heads, position);
    double worst = 0.0;
    for (size_t i = 0; i < width; ++i) worst = std::max(worst, std::abs(out[i] - expected[i]));
    if (!CHECK(worst < 2e-5)) {  // NaN fails too
      std::fprintf(stderr, "%s, KV type %d: position %d of %d, off by %g\n", table.name, static_cast<int>(c.type),
                   position, c.context, worst);
    }
  }
  // A tile of eight tokens, or of three, gives the bits of single tokens.
  for (int32_t size : {8, 3}) {
    for (int32_t first = 0; first + size <= c.context; first += 60) {
      const std::vector<float> together = fixture.attend(first, size);
      for (int32_t t = 0; t < size; ++t) {
        const std::vector<float> alone = fixture.attend(first + t, 1);
        CHECK(std::memcmp(alone.data(), &together[t * width], width * sizeof(float)) == 0);
      }
    }
  }
}

void test_halves_round_to_nearest_even(const KernelTable& table) {
  const AttentionShape shape{1, 1, 16, 1.0f, 0, 0.0f};
  Fixture fixture({shape, KVType::F16, 1}, *table.step);
  const float samples[16] = {1.0f,     65504.0f, 65519.0f, 65520.0f, -1e9f,    6e-8f,       2.9e-8f, 3.1e-8f,
                             6.1e-5f,  6.0e-5f,  0.1f,     -0.0f,    1.00049f, 1.00048828f, 3.1415f, 1.0014648f};
  const int32_t slot = 21;
  table.step->write_kv(fixture.pool.layer(0), {samples, 0, samples, 0}, &slot, 1);
  const KVLayer layer = fixture.pool.layer(0);
  const uint16_t* block = reinterpret_cast<const uint16_t*>(layer.pool + layer.block_bytes);
  for (int i = 0; i < 16; ++i) {
    CHECK(block[i * kBlockSize + 5] == f32_to_f16(samples[i]));
    CHECK(block[16 * kBlockSize + 5 * 16 + i] == f32_to_f16(samples[i]));
  }
}

}  // namespace

int main() {
  for (const KernelTable* table : supported_tables(probe_features())) {
    for (KVType type : kKVTypes) {
      test_case(*table, {{3, 1, 64, 0.125f, 0, 0.0f}, type, 300});
      test_case(*table, {{4, 4, 40, 0.2f, 0, 0.0f}, type, 140});
      test_case(*table, {{8, 1, 16, 0.25f, 100, 0.0f}, type, 290});
      test_case(*table, {{2, 2, 7, 0.5f, 5, 3.0f}, type, 150});
      test_case(*table, {{5, 1, 128, 0.1f, 130, 20.0f}, type, 270});
      test_case(*table, {{2, 1, 80, 0.1f, 0, 0.0f}, type, 20});
    }
    test_halves_round_to_nearest_even(*table);
  }
  return octavo_test::check_result();
}
