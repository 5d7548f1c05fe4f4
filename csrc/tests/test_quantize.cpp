// Quantisation of activations by every table: the rule itself, and the same bytes from all.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "activations.h"
#include "check.h"
#include "tables.h"

namespace {

using namespace octavo_test;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

void check_block_fields(const ActBlock& block, int32_t t) {
  const int32_t low = std::accumulate(block.q[t], block.q[t] + 16, 0);
  const int32_t high = std::accumulate(block.q[t] + 16, block.q[t] + 32, 0);
  CHECK(block.start8[t] == -8 * (low + high));
  CHECK(block.start16[t] == -16 * (low + high));
  CHECK(block.start128[t] == -128 * (low + high));
  CHECK(block.start32[0][t] == -32 * low);
  CHECK(block.start32[1][t] == -32 * high);
}

float own_sum(const ActBlock& block, int32_t t) {
  return block.d[t] * static_cast<float>(std::accumulate(block.q[t], block.q[t] + 32, 0));
}

void check_codes(const ActBlock& block, int32_t t, const float* values) {
  float largest = 0.0f;
  for (int32_t k = 0; k < 32; ++k) largest = std::max(largest, std::fabs(values[k]));
  CHECK(block.d[t] == largest / 127.0f);
  for (int32_t k = 0; k < 32; ++k) {
    CHECK(block.q[t][k] == (largest == 0.0f ? 0.0f : std::nearbyint(values[k] * (127.0f / largest))));
  }
}

// values: the token's, with the padding's zeros.
void check_residuals(const Aligned& acts, int32_t token, int32_t cols, const std::vector<float>& values) {
  const int32_t t = token % kTileTokens;
  std::vector<int32_t> order(num_blocks(cols));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return block_at(acts, token, a, cols).d[t] > block_at(acts, token, b, cols).d[t];
  });
  const int32_t num_chosen = std::min(kResidualBlocks, num_blocks(cols));
  std::sort(order.begin(), order.begin() + num_chosen);
  std::vector<float> sums;
  for (int32_t b = 0; b < num_blocks(cols); ++b) sums.push_back(own_sum(block_at(acts, token, b, cols), t));
  for (int32_t i = 0; i < kResidualBlocks; ++i) {
    const ActResidual& residual = residual_at(acts, token, i, cols);
    check_block_fields(residual.terms, t);
    const int32_t rank = i - (kResidualBlocks - num_chosen);
    float left[32] = {};
    CHECK(residual.block[t] == (rank < 0 ? 0 : order[rank]));
    if (rank >= 0) {
      const ActBlock& block = block_at(acts, token, order[rank], cols);
      for (int32_t k = 0; k < 32; ++k) {
        left[k] = std::fma(-block.d[t], static_cast<float>(block.q[t][k]), values[32 * order[rank] + k]);
      }
      sums[order[rank]] += own_sum(residual.terms, t);
    }
    check_codes(residual.terms, t, left);
  }
  for (int32_t b = 0; b < num_blocks(cols); ++b) CHECK(block_at(acts, token, b, cols).d_sum[t] == sums[b]);
}

void check_padding_token(const Aligned& acts, int32_t token, int32_t cols) {
  const int32_t t = token % kTileTokens;
  const float zeros[32] = {};
  for (int32_t i = 0; i < kResidualBlocks; ++i) {
    const ActResidual& residual = residual_at(acts, token, i, cols);
    check_block_fields(residual.terms, t);
    check_codes(residual.terms, t, zeros);
    CHECK(residual.block[t] == 0);
  }
}

void check_quantize(const LinearKernels& kernels, int32_t cols, Activations kind) {
  const int32_t tokens = 11;
  const std::vector<float> x = make_activations(tokens, cols, kind, cols);
  const Aligned acts = quantize(kernels, x.data(), cols, tokens, cols);
  for (int32_t token = 0; token < num_tiles(tokens) * kTileTokens; ++token) {
    std::vector<float> values(32 * num_blocks(cols));
    if (token < tokens) std::copy_n(&x[static_cast<size_t>(token) * cols], cols, values.begin());
    for (int32_t b = 0; b < num_blocks(cols); ++b) {
      const ActBlock& block = block_at(acts, token, b, cols);
      check_block_fields(block, token % kTileTokens);
      check_codes(block, token % kTileTokens, &values[32 * b]);
    }
    if (token < tokens) {
      check_residuals(acts, token, cols, values);
    } else {
      check_padding_token(acts, token, cols);
    }
  }
}

void test_quantize_rounds_to_nearest_and_pads_with_zeros(const LinearKernels& kernels) {
  for (const int32_t cols : {1, 17, 32, 40, 64, 96, 576}) {
    check_quantize(kernels, cols, Activations::kGaussian);
    check_quantize(kernels, cols, Activations::kOutlierChannels);
    check_quantize(kernels, cols, Activations::kExtremes);  // all scales are equal: the first block counts
  }
}

void test_quantize_survives_any_float(const LinearKernels& kernels) {
  const float largest = std::numeric_limits<float>::max();
  std::vector<float> x(8 * 64, 1.0f);
  float* rows[8];
  for (int32_t t = 0; t < 8; ++t) rows[t] = &x[64 * t];
  rows[0][3] = kInf;
  rows[1][3] = -kInf;
  rows[2][40] = kNan;
  rows[3][0] = largest;
  for (int32_t k = 0; k < 32; ++k) rows[4][k] = 1e-42f;
  for (int32_t k = 0; k < 32; ++k) rows[5][k] = k % 2 ? 0.0f : -0.0f;
  for (int32_t k = 0; k < 32; ++k) rows[6][k] = 1e-30f;
  const Aligned acts = quantize(kernels, x.data(), 64, 8, 64);
  const ActBlock& block = block_at(acts, 0, 0, 64);
  for (int32_t t = 0; t < 8; ++t) check_block_fields(block, t);
  CHECK(block.d[0] == largest / 127.0f && block.q[0][3] == 127 && block.q[0][0] == 0);
  CHECK(block.d[1] == largest / 127.0f && block.q[1][3] == -127);
  CHECK(block.d[2] == 1.0f / 127.0f && std::isnan(block_at(acts, 2, 1, 64).d[2]));
  CHECK(block.d[3] == largest / 127.0f && block.q[3][0] == 127);
  CHECK(block.d[4] == 0.0f && block.q[4][0] == 0);
  CHECK(block.d[5] == 0.0f && block.d_sum[5] == 0.0f);
  CHECK(block.d[6] == 1e-30f / 127.0f && block.q[6][31] == 127);
  for (int32_t i = 0; i < kResidualBlocks; ++i) {
    const ActResidual& residual = residual_at(acts, 0, i, 64);
    for (int32_t t = 0; t < 8; ++t) {
      check_block_fields(residual.terms, t);
      CHECK(std::isfinite(residual.terms.d[t]));
    }
    CHECK(residual.block[2] == 0);  // its other block is NaN
  }
}

// 29 tokens leave a tile of 5, 26 one of 2: with two terms, a tile of 4 less than full or not there.
void test_quantize_is_the_same_in_any_tile_range(const LinearKernels& kernels) {
  for (const Precision precision : kPrecisions) {
    for (const int32_t tokens : {29, 26}) {
      const std::vector<float> x = make_activations(tokens, 96, Activations::kGaussian, 5);
      const Aligned whole = quantize(kernels, x.data(), 96, tokens, 96, precision);
      const Aligned pieces(whole.size());
      for (const int32_t tile : {2, 0, 3, 1}) {
        kernels.quantize(x.data(), 96, tokens, 96, precision, tile, tile + 1, pieces.bytes());
      }
      CHECK(std::memcmp(whole.bytes(), pieces.bytes(), whole.size()) == 0);
    }
  }
}

// Its tile has no padding where a tile of one is multiplied: what the memory held before must not matter.
void test_a_token_alone_does_not_read_its_memory(const LinearKernels& kernels) {
  const int32_t cols = 96;
  std::vector<float> x = make_activations(1, cols, Activations::kOutlierChannels, 7);
  x.resize(32 * num_blocks(cols));  // the blocks' padding is zero
  const Aligned acts(kernels.act_bytes(1, cols, Precision::kInt8));
  std::memset(acts.bytes(), 0xff, acts.size());
  kernels.quantize(x.data(), cols, 1, cols, Precision::kInt8, 0, 1, acts.bytes());
  for (int32_t b = 0; b < num_blocks(cols); ++b) {
    const ActBlock& block = block_at(acts, 0, b, cols);
    check_block_fields(block, 0);
    check_codes(block, 0, &x[32 * b]);
  }
  check_residuals(acts, 0, cols, x);
  check_padding_token(acts, 1, cols);
}

void check_two_terms(const Aligned& acts, int32_t token, int32_t cols, const std::vector<float>& values) {
  const Term first = term_at(acts, token, 0, cols, Precision::kInt8x2);
  const Term second = term_at(acts, token, 1, cols, Precision::kInt8x2);
  for (int32_t b = 0; b < num_blocks(cols); ++b) {
    float left[32];
    for (int32_t k = 0; k < 32; ++k) {
      const float code = first.block(b).q[first.place][k];
      left[k] = std::fma(-first.block(b).d[first.place], code, values[32 * b + k]);
    }
    check_codes(first.block(b), first.place, &values[32 * b]);
    check_codes(second.block(b), second.place, left);
    for (const Term& term : {first, second}) {
      check_block_fields(term.block(b), term.place);
      CHECK(term.block(b).d_sum[term.place] == own_sum(term.block(b), term.place));
    }
  }
}

void test_the_second_term_is_what_the_first_leaves_over(const LinearKernels& kernels) {
  const int32_t tokens = 11;  // the last tile of 4 has one token of padding
  for (const int32_t cols : {1, 40, 576}) {
    for (const Activations kind : {Activations::kGaussian, Activations::kOutlierChannels, Activations::kExtremes}) {
      const std::vector<float> x = make_activations(tokens, cols, kind, cols);
      const Aligned acts = quantize(kernels, x.data(), cols, tokens, cols, Precision::kInt8x2);
      for (int32_t token = 0; token < 12; ++token) {
        std::vector<float> values(32 * num_blocks(cols));
        if (token < tokens) std::copy_n(&x[static_cast<size_t>(token) * cols], cols, values.begin());
        check_two_terms(acts, token, cols, values);
      }
    }
  }
}

void test_two_terms_survive_any_float(const LinearKernels& kernels) {
  std::vector<float> x(2 * 64, 1.0f);
  x[3] = kInf;
  x[64 + 40] = kNan;
  const Aligned acts = quantize(kernels, x.data(), 64, 2, 64, Precision::kInt8x2);
  for (int32_t term = 0; term < 2; ++term) {
    const Term infinite = term_at(acts, 0, term, 64, Precision::kInt8x2);
    CHECK(std::isfinite(infinite.block(0).d[infinite.place]));
    const Term nan = term_at(acts, 1, term, 64, Precision::kInt8x2);
    CHECK(std::isnan(nan.block(1).d[nan.place]) && std::isfinite(nan.block(0).d[nan.place]));
  }
}

void test_tables_quantise_to_the_same_bytes() {
  std::vector<float> x = make_activations(50, 100, Activations::kOutlierChannels, 6);
  const float odd[] = {kInf, -kInf, kNan, 1e-44f, 3e38f, 0x1p-120f * 127, 0x1p-121f * 127, 0x1p-126f};
  for (size_t i = 0; i < std::size(odd); ++i) x[i * 131 + 7] = odd[i];
  for (int32_t k = 0; k < 100; ++k) x[4900 + k] *= 0x1p-122f;
  for (int32_t k = 0; k < 100; ++k) x[4800 + k] *= 0x1p-114f;  // residuals have scales about 2^-120
  for (int32_t k = 0; k < 100; ++k) x[4700 + k] = kNan;
  for (int32_t k = 32; k < 100; ++k) x[4600 + k] = kNan;
  for (const Precision precision : kPrecisions) {
    const Aligned expected = quantize(octavo::scalar::linear_kernels, x.data(), 100, 50, 100, precision);
    for (const NamedTable& table : supported_tables()) {
      const size_t bytes = octavo::scalar::linear_kernels.act_bytes(50, 100, precision);
      CHECK(table.kernels->act_bytes(50, 100, precision) == bytes);
      const Aligned acts = quantize(*table.kernels, x.data(), 100, 50, 100, precision);
      CHECK(std::memcmp(acts.bytes(), expected.bytes(), bytes) == 0);
    }
  }
}

}  // namespace

int main() {
  test_tables_quantise_to_the_same_bytes();
  for (const NamedTable& table : supported_tables()) {
    std::printf("table %s\n", table.name);
    test_quantize_rounds_to_nearest_and_pads_with_zeros(*table.kernels);
    test_quantize_survives_any_float(*table.kernels);
    test_quantize_is_the_same_in_any_tile_range(*table.kernels);
    test_a_token_alone_does_not_read_its_memory(*table.kernels);
    test_the_second_term_is_what_the_first_leaves_over(*table.kernels);
    test_two_terms_survive_any_float(*table.kernels);
  }
  return check_result();
}
