// What KV types store: the same bytes from every table, near the number, of a token's own numbers only.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "core/float_mode.h"
#include "core/kv_pool.h"
#include "cpu/dispatch.h"
#include "kv_values.h"

using namespace octavo;
using octavo_test::kKVTypes;
using octavo_test::rotated;
using octavo_test::stored_head;
using octavo_test::StoredHead;

namespace {

constexpr int32_t kHeads = 2, kTokens = 2 * kBlockSize;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Store {
  Store(KVType type, int32_t head_dim, float fill) : width(kHeads * head_dim) {
    CHECK(KVPool::create({2, kHeads, head_dim, type}, 2, &pool).ok());
    pool.fill(fill);
  }
  void write(const StepKernels& step, const std::vector<float>& keys, const std::vector<float>& values, int32_t slot) {
    step.write_kv(pool.layer(1), {&keys[slot * width], 0, &values[slot * width], 0}, &slot, 1);
  }
  bool equals(const Store& other) const {
    return std::memcmp(pool.layer(0).pool, other.pool.layer(0).pool, 2 * pool.shape().block_bytes()) == 0;
  }
  KVPool pool;
  size_t width;
};

// Tokens of every size a number may have, each of its own: from what vanishes to what is beyond float16.
std::vector<float> numbers(int32_t head_dim, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const float sizes[] = {1.0f, 30.0f, 1e-3f, 1e-5f, 3e-8f, 1e-20f, 1e-39f, 1e-42f, 0.0f, 2e4f, 7e4f, 1e30f};
  std::vector<float> out(size_t{kTokens} * kHeads * head_dim);
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t token = i / (kHeads * head_dim);
    out[i] = normal(random) * sizes[token % std::size(sizes)] + (token % 5 == 4 ? 3.0f : 0.0f);
    if (i % 37 == 0) out[i] = -0.0f;
    if (token % 7 == 6 && i % 50 == 9) out[i] *= 40.0f;
  }
  return out;
}

void test_tables_store_the_same_bytes(KVType type, int32_t head_dim) {
  const std::vector<float> keys = numbers(head_dim, 1), values = numbers(head_dim, 2);
  const auto tables = supported_tables(probe_features());
  Store first(type, head_dim, 0.0f);
  for (int32_t slot = 0; slot < kTokens; ++slot) first.write(*tables[0]->step, keys, values, slot);
  for (const KernelTable* table : tables) {
    for (const bool is_flushing : {false, true}) {
      Store other(type, head_dim, 0.0f);
      {
        const auto write = [&] {  // backwards: no token may depend on those before it
          for (int32_t slot = kTokens - 1; slot >= 0; --slot) other.write(*table->step, keys, values, slot);
        };
        if (is_flushing) {
          const FlushSubnormals mode;
          write();
        } else {
          write();
        }
      }
      if (!CHECK(first.equals(other))) {
        std::fprintf(stderr, "%s, KV type %d, head size %d, flushing %d\n", table->name, static_cast<int>(type),
                     head_dim, is_flushing);
      }
    }
  }
}

// How far a stored number may be from x in a group with these extremes. Factors are rounded too.
double allowed(KVCode code, double x, double low, double high) {
  const double most = std::max(std::abs(low), std::abs(high));
  switch (code) {
    case KVCode::F32: return 0.0;
    case KVCode::F16: return std::abs(x) * 0x1p-11 + 0x1p-25;
    case KVCode::BF16: return std::abs(x) * 0x1p-8;
    case KVCode::kInt8: return most / 127 * 0.5 * 1.01 + 0x1p-24;
    case KVCode::kE4m3: return std::max(std::abs(x) / 16, most / 448 * 0x1p-10) * 1.01 + 0x1p-24;
    case KVCode::kE5m2: return std::max(std::abs(x) / 8, most / 57344 * 0x1p-17) * 1.01 + 0x1p-24;
    case KVCode::kUint4: break;
  }
  return (high - low) / 15 * 0.5 * 1.01 + most * 0x1p-10 + 0x1p-23;
}

template <typename Number>
void check_near(KVCode code, const Number* x, const std::vector<double>& stored) {
  const int32_t size = static_cast<int32_t>(stored.size());
  for (int32_t first = 0; first < size; first += 64) {
    const int32_t last = std::min(first + 64, size);
    const auto [low, high] = std::minmax_element(x + first, x + last);
    for (int32_t i = first; i < last; ++i) {
      if (!CHECK(std::abs(stored[i] - x[i]) <= allowed(code, x[i], *low, *high))) {
        std::fprintf(stderr, "KV code %d: %g is stored as %g, group %g to %g\n", static_cast<int>(code),
                     static_cast<double>(x[i]), stored[i], static_cast<double>(*low), static_cast<double>(*high));
      }
    }
  }
}

void test_numbers_are_near(const KernelTable& table, KVType type, int32_t head_dim) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> keys(size_t{kTokens} * kHeads * head_dim), values(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i] = normal(random) * (i % 3 == 0 ? 20.0f : 1.0f);
    values[i] = normal(random) + 0.5f;
  }
  Store store(type, head_dim, kNaN);
  for (int32_t slot = 0; slot < kTokens; ++slot) store.write(*table.step, keys, values, slot);
  for (int32_t slot = 0; slot < kTokens; ++slot) {
    for (int32_t h = 0; h < kHeads; ++h) {
      const StoredHead head = stored_head(store.pool.layer(1), slot, h);
      const float* k = &keys[(slot * kHeads + h) * head_dim];
      if (type == KVType::kInt4) {
        check_near(key_code(type), rotated(k, head_dim).data(), head.key);
      } else {
        check_near(key_code(type), k, head.key);
      }
      check_near(value_code(type), &values[(slot * kHeads + h) * head_dim], head.value);
    }
  }
}

void test_what_is_no_number_reads_as_nan(const KernelTable& table, KVType type) {
  constexpr int32_t kDim = 128;
  for (const float odd : {kNaN, -kNaN, kInfinity, -kInfinity}) {
    std::vector<float> x(size_t{kTokens} * kHeads * kDim, 1.0f);
    x[70] = odd;
    Store store(type, kDim, 0.0f);
    for (int32_t slot = 0; slot < kTokens; ++slot) store.write(*table.step, x, x, slot);
    const StoredHead head = stored_head(store.pool.layer(1), 0, 0), next = stored_head(store.pool.layer(1), 1, 0);
    CHECK(!std::isfinite(head.value[70]) && !std::isfinite(head.key[70]));
    if (has_scale(value_code(type))) CHECK(std::isnan(head.value[64]) && std::abs(head.value[63] - 1.0) < 0.01);
    CHECK(std::abs(next.value[70] - 1.0) < 0.01);
  }
}

// 8-bit floats: every code but NaN's and infinities' is stored of its own number, and of what rounds to it.
void test_every_8_bit_float(const KernelTable& table, KVType type, int mantissa_bits, int bias, double largest) {
  std::vector<double> codes;
  for (int code = 0; code < 128; ++code) {
    const double x = octavo_test::float8(static_cast<uint8_t>(code), mantissa_bits, bias);
    if (x <= largest) codes.push_back(x);
  }
  CHECK(codes.back() == largest);
  for (size_t i = 0; i + 1 < codes.size(); ++i) {
    // The group's greatest makes the scale exact: 2^-8 or 2^-15 of the codes' own size.
    const double unit = 1.75 / largest;
    const double middle = (codes[i] + codes[i + 1]) / 2, even = i % 2 == 0 ? codes[i] : codes[i + 1];
    const double below = std::nextafter(static_cast<float>(middle * unit), 0.0f);
    const float x[4] = {static_cast<float>(codes[i] * unit), static_cast<float>(middle * unit),
                        static_cast<float>(below), 1.75f};
    Store store(type, 4, 0.0f);
    const std::vector<float> token = {x[0], x[1], x[2], x[3], -x[0], -x[1], -x[2], -x[3]};
    store.write(*table.step, token, token, 0);
    for (int32_t h = 0; h < kHeads; ++h) {
      const StoredHead head = stored_head(store.pool.layer(1), 0, h);
      const double sign = h == 0 ? 1.0 : -1.0;
      CHECK(head.key[0] == sign * codes[i] * unit && head.key[1] == sign * even * unit);
      CHECK(head.key[2] == sign * codes[i] * unit && head.value == head.key);
    }
  }
}

void test_layouts() {
  const auto ratio = [](KVType type, int32_t head_dim) {
    return static_cast<double>(kv_layer_bytes(KVType::F16, 3, head_dim)) /
           static_cast<double>(kv_layer_bytes(type, 3, head_dim));
  };
  for (const int32_t head_dim : {64, 128, 256}) {
    for (const KVType type : {KVType::kInt8, KVType::kE4m3, KVType::kE5m2}) CHECK(ratio(type, head_dim) >= 1.9);
    CHECK(ratio(KVType::kInt8Int4, head_dim) >= 2.4);
    CHECK(ratio(KVType::kInt4, head_dim) >= 3.5);
  }
  for (const KVType type : kKVTypes) {
    for (const int32_t head_dim : {1, 7, 40, 64, 65, 80}) CHECK(kv_layer_bytes(type, 3, head_dim) % 64 == 0);
  }
}

}  // namespace

int main() {
  test_layouts();
  for (const KVType type : kKVTypes) {
    for (const int32_t head_dim : {1, 7, 40, 64, 80, 128}) test_tables_store_the_same_bytes(type, head_dim);
    for (const KernelTable* table : supported_tables(probe_features())) {
      for (const int32_t head_dim : {7, 64, 80}) test_numbers_are_near(*table, type, head_dim);
      test_what_is_no_number_reads_as_nan(*table, type);
    }
  }
  for (const KernelTable* table : supported_tables(probe_features())) {
    test_every_8_bit_float(*table, KVType::kE4m3, 3, 7, 448.0);
    test_every_8_bit_float(*table, KVType::kE5m2, 2, 15, 57344.0);
  }
  return octavo_test::check_result();
}
