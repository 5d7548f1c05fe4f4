// Quantisation and matrix products of every table, against float64 and against themselves in other shapes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "check.h"
#include "tables.h"
#include "weights.h"

namespace {

using namespace octavo_test;
using octavo::ActBlock;
using octavo::ActResidual;
using octavo::kResidualBlocks;
using octavo::kTileTokens;
using octavo::LinearKernels;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kSentinel = -12345.0f;

int32_t num_tiles(int32_t tokens) { return (tokens + kTileTokens - 1) / kTileTokens; }
int32_t num_blocks(int32_t cols) { return (cols + 63) / 64 * 2; }

Aligned quantize(const LinearKernels& kernels, const float* x, size_t stride, int32_t tokens, int32_t cols) {
  Aligned acts(kernels.act_bytes(tokens, cols));
  kernels.quantize(x, stride, tokens, cols, 0, num_tiles(tokens), acts.bytes());
  return acts;
}

const std::byte* tile_at(const Aligned& acts, int32_t token, int32_t cols) {
  return acts.bytes() + token / kTileTokens *
                            (num_blocks(cols) * sizeof(ActBlock) + kResidualBlocks * sizeof(ActResidual));
}

const ActBlock& block_at(const Aligned& acts, int32_t token, int32_t block, int32_t cols) {
  return reinterpret_cast<const ActBlock*>(tile_at(acts, token, cols))[block];
}

const ActResidual& residual_at(const Aligned& acts, int32_t token, int32_t i, int32_t cols) {
  const ActBlock* end = reinterpret_cast<const ActBlock*>(tile_at(acts, token, cols)) + num_blocks(cols);
  return reinterpret_cast<const ActResidual*>(end)[i];
}

enum class Activations { kGaussian, kExtremes, kOutlierChannels };

// Gaussian with a few larger values; values whose codes are all -127 and 127; or a channel far above all others, the
// same one for most tokens.
std::vector<float> make_activations(int32_t tokens, int32_t cols, Activations kind, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(tokens) * cols);
  for (float& value : x) {
    const uint32_t draw = random();
    if (kind == Activations::kExtremes) {
      value = draw % 2 ? 3.0f : -3.0f;
    } else {
      value = normal(random) * (draw % 200 == 0 ? 3.0f : 1.0f);
    }
  }
  if (kind == Activations::kOutlierChannels) {
    for (int32_t token = 0; token < tokens; ++token) {
      const int32_t channel = token % 11 == 5 ? static_cast<int32_t>(random() % cols) : cols * 2 / 3;
      x[static_cast<size_t>(token) * cols + channel] = 60.0f;
    }
  }
  return x;
}

// --- quantisation ---------------------------------------------------------------------------------------------------

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
    CHECK(block.q[t][k] == (largest == 0.0f ? 0.0f : std::nearbyint(values[k] / block.d[t])));
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

void test_quantize_is_the_same_in_any_tile_range(const LinearKernels& kernels) {
  const int32_t tokens = 29;
  const std::vector<float> x = make_activations(tokens, 96, Activations::kGaussian, 5);
  const Aligned whole = quantize(kernels, x.data(), 96, tokens, 96);
  const Aligned pieces(whole.size());
  for (const int32_t tile : {2, 0, 3, 1}) kernels.quantize(x.data(), 96, tokens, 96, tile, tile + 1, pieces.bytes());
  CHECK(std::memcmp(whole.bytes(), pieces.bytes(), kernels.act_bytes(tokens, 96)) == 0);
}

void test_tables_quantise_to_the_same_bytes() {
  std::vector<float> x = make_activations(50, 100, Activations::kOutlierChannels, 6);
  const float odd[] = {kInf, -kInf, kNan, 1e-44f, 3e38f, 0x1p-120f * 127, 0x1p-121f * 127, 0x1p-126f};
  for (size_t i = 0; i < std::size(odd); ++i) x[i * 131 + 7] = odd[i];
  for (int32_t k = 0; k < 100; ++k) x[4900 + k] *= 0x1p-122f;
  for (int32_t k = 0; k < 100; ++k) x[4800 + k] *= 0x1p-114f;  // residuals have scales about 2^-120
  for (int32_t k = 0; k < 100; ++k) x[4700 + k] = kNan;
  for (int32_t k = 32; k < 100; ++k) x[4600 + k] = kNan;
  const Aligned expected = quantize(octavo::scalar::linear_kernels, x.data(), 100, 50, 100);
  for (const NamedTable& table : supported_tables()) {
    CHECK(table.kernels->act_bytes(50, 100) == octavo::scalar::linear_kernels.act_bytes(50, 100));
    const Aligned acts = quantize(*table.kernels, x.data(), 100, 50, 100);
    CHECK(std::memcmp(acts.bytes(), expected.bytes(), acts.size()) == 0);
  }
}

// --- products -------------------------------------------------------------------------------------------------------

// Everything one product needs; out has a padded row stride, and sentinels where nothing may be written.
class Product {
 public:
  Product(const LinearKernels& kernels, const octavo::PackedMatrix& weights)
      : kernels_(kernels), weights_(weights), scratch_(kernels.scratch_bytes(weights.cols)) {}

  size_t stride() const { return static_cast<size_t>(weights_.rows) + 7; }

  std::vector<float> run(const float* x, size_t x_stride, int32_t tokens) const {
    return run(x, x_stride, tokens, {0, weights_.num_panels});
  }
  // splits: panel boundaries, multiplied last part first.
  std::vector<float> run(const float* x, size_t x_stride, int32_t tokens, const std::vector<int32_t>& splits) const {
    const Aligned acts = quantize(kernels_, x, x_stride, tokens, weights_.cols);
    std::vector<float> out(tokens * stride(), kSentinel);
    for (size_t i = splits.size() - 1; i > 0; --i) {
      kernels_.multiply(weights_, is_float(weights_.format) ? nullptr : acts.bytes(), x, x_stride, tokens,
                        splits[i - 1], splits[i], out.data(), stride(), scratch_.bytes(), nullptr);
    }
    return out;
  }

 private:
  const LinearKernels& kernels_;
  const octavo::PackedMatrix& weights_;
  Aligned scratch_;
};

// The activations the kernels really multiply: the quantised ones, or x itself for float weights.
std::vector<double> seen_activations(const LinearKernels& kernels, WeightFormat format, const std::vector<float>& x,
                                     int32_t tokens, int32_t cols) {
  if (is_float(format)) return {x.begin(), x.end()};
  const Aligned acts = quantize(kernels, x.data(), cols, tokens, cols);
  std::vector<double> seen;
  for (int32_t token = 0; token < tokens; ++token) {
    for (int32_t k = 0; k < cols; ++k) {
      const ActBlock& block = block_at(acts, token, k / 32, cols);
      const int32_t t = token % kTileTokens;
      seen.push_back(static_cast<double>(block.d[t]) * block.q[t][k % 32]);
    }
    for (int32_t i = 0; i < kResidualBlocks; ++i) {
      const ActResidual& residual = residual_at(acts, token, i, cols);
      const int32_t t = token % kTileTokens;
      const int32_t first = 32 * residual.block[t];
      for (int32_t k = first; k < std::min(first + 32, cols); ++k) {
        seen[static_cast<size_t>(token) * cols + k] +=
            static_cast<double>(residual.terms.d[t]) * residual.terms.q[t][k - first];
      }
    }
  }
  return seen;
}

// Against float64 over the rows as packed and the activations as quantised: only the float accumulation may differ.
// Each of its steps rounds once or twice by 2^-24 of the terms summed so far.
void check_exactness(const LinearKernels& kernels, const TestMatrix& matrix, const std::vector<double>& seen,
                     int32_t tokens, const std::vector<float>& out, size_t stride) {
  const int32_t cols = matrix.packed.cols;
  const double steps = is_float(matrix.packed.format) ? cols + 2.0 : (num_blocks(cols) + kResidualBlocks) * 2.0 + 6.0;
  std::vector<float> row(cols);
  for (int32_t r = 0; r < matrix.packed.rows; ++r) {
    kernels.unpack_row(matrix.packed, r, 1.0f, row.data());
    for (int32_t token = 0; token < tokens; ++token) {
      double expected = 0.0;
      double magnitude = 0.0;
      for (int32_t k = 0; k < cols; ++k) {
        const double x = seen[static_cast<size_t>(token) * cols + k];
        expected += row[k] * x;
        magnitude += 1.01 * matrix.weights[static_cast<size_t>(r) * cols + k].magnitude * std::fabs(x);
      }
      CHECK(std::fabs(out[token * stride + r] - expected) <= steps * 0x1p-24 * magnitude);
    }
  }
}

// Against float64 over the original weights and activations, relative to the norm of all outputs.
void check_accuracy(const TestMatrix& matrix, const std::vector<float>& x, int32_t tokens,
                    const std::vector<float>& out, size_t stride, double tolerance) {
  const int32_t cols = matrix.packed.cols;
  double error = 0.0;
  double norm = 0.0;
  for (int32_t token = 0; token < tokens; ++token) {
    for (int32_t r = 0; r < matrix.packed.rows; ++r) {
      double expected = 0.0;
      for (int32_t k = 0; k < cols; ++k) {
        expected += static_cast<double>(matrix.weights[static_cast<size_t>(r) * cols + k].value) * x[token * cols + k];
      }
      const double difference = out[token * stride + r] - expected;
      error += difference * difference;
      norm += expected * expected;
    }
  }
  if (!CHECK(error <= tolerance * tolerance * norm)) {
    std::fprintf(stderr, "  %s cols %d: %.4f %%\n", format_name(matrix.packed.format), cols,
                 100 * std::sqrt(error / norm));
  }
}

void check_nothing_else_was_written(const std::vector<float>& out, int32_t rows, size_t stride) {
  for (size_t i = 0; i < out.size(); ++i) {
    if (i % stride >= static_cast<size_t>(rows)) CHECK(out[i] == kSentinel);
  }
}

void check_product(const LinearKernels& kernels, WeightFormat format, int32_t rows, int32_t cols) {
  for (const Fill fill : {Fill::kRandom, Fill::kExtremes}) {
    for (const Activations kind : {Activations::kGaussian, Activations::kExtremes, Activations::kOutlierChannels}) {
      const TestMatrix matrix = make_matrix(format, rows, cols, fill, rows * 1000 + cols);
      const Product product(kernels, matrix.packed);
      const int32_t tokens = 3;
      const std::vector<float> x = make_activations(tokens, cols, kind, cols);
      const std::vector<float> out = product.run(x.data(), cols, tokens);
      check_exactness(kernels, matrix, seen_activations(kernels, format, x, tokens, cols), tokens, out,
                      product.stride());
      check_nothing_else_was_written(out, rows, product.stride());
    }
  }
}

void test_products_against_float64(const LinearKernels& kernels) {
  for (const WeightFormat format : kFormats) {
    for (const int32_t cols : {32, 64, 96, 256, 576, 768, 2048}) {
      if (cols % block_shape(format).cols != 0) continue;
      for (const int32_t rows : {1, 15, 16, 17, 33}) check_product(kernels, format, rows, cols);
    }
  }
  for (const WeightFormat format : {WeightFormat::F32, WeightFormat::F16}) {
    for (const int32_t cols : {1, 2, 5, 63}) check_product(kernels, format, 19, cols);
  }
}

// What rounding activations to int8 per 32 costs, over outputs enough for a steady figure: 0.4 to 0.7 %.
void test_products_are_within_one_percent_of_the_unrounded(const LinearKernels& kernels) {
  const int32_t tokens = 24;
  for (const WeightFormat format : kFormats) {
    for (const int32_t cols : {768, 2048}) {
      for (const Fill fill : {Fill::kRandom, Fill::kExtremes}) {
        for (const Activations kind : {Activations::kGaussian, Activations::kExtremes}) {
          const TestMatrix matrix = make_matrix(format, 48, cols, fill, cols);
          const Product product(kernels, matrix.packed);
          const std::vector<float> x = make_activations(tokens, cols, kind, cols);
          const std::vector<float> out = product.run(x.data(), cols, tokens);
          check_accuracy(matrix, x, tokens, out, product.stride(), is_float(format) ? 1e-6 : 0.01);
        }
      }
    }
  }
}

// Without a second term the block of the outlier channel would make most of the error: that of the first terms alone,
// computed here from their codes.
void test_an_outlier_channel_costs_little_accuracy(const LinearKernels& kernels) {
  if (kResidualBlocks == 0) return;
  const int32_t tokens = 24;
  for (const WeightFormat format : kFormats) {
    if (is_float(format)) continue;
    for (const int32_t cols : {768, 2048}) {
      const TestMatrix matrix = make_matrix(format, 48, cols, Fill::kRandom, cols);
      const Product product(kernels, matrix.packed);
      const std::vector<float> x = make_activations(tokens, cols, Activations::kOutlierChannels, cols);
      const std::vector<float> out = product.run(x.data(), cols, tokens);
      const Aligned acts = quantize(kernels, x.data(), cols, tokens, cols);
      double error = 0.0;
      double first_terms_error = 0.0;
      for (int32_t token = 0; token < tokens; ++token) {
        for (int32_t r = 0; r < 48; ++r) {
          double expected = 0.0;
          double first_terms = 0.0;
          for (int32_t k = 0; k < cols; ++k) {
            const ActBlock& block = block_at(acts, token, k / 32, cols);
            const int32_t t = token % kTileTokens;
            const double weight = matrix.weights[static_cast<size_t>(r) * cols + k].value;
            expected += weight * x[static_cast<size_t>(token) * cols + k];
            first_terms += weight * block.d[t] * block.q[t][k % 32];
          }
          error += std::pow(out[token * product.stride() + r] - expected, 2);
          first_terms_error += std::pow(first_terms - expected, 2);
        }
      }
      CHECK(std::sqrt(error) <= 0.5 * std::sqrt(first_terms_error));
    }
  }
}

// Codes of one sign, activations of one sign: the largest integer sums there are, for each format's offset.
void test_integer_sums_do_not_overflow_or_saturate(const LinearKernels& kernels) {
  for (const WeightFormat format : {WeightFormat::Q4_0, WeightFormat::Q5_0, WeightFormat::Q8_0, WeightFormat::Q4_1}) {
    for (const uint8_t code : {0x00, 0xff, 0x80, 0x7f}) {
      std::vector<std::byte> source = make_source(format, 16, 64, Fill::kRandom, 1);
      const int32_t block_bytes = block_shape(format).bytes;
      const int32_t head = format == WeightFormat::Q4_1 ? 4 : 2;
      for (size_t i = 0; i < source.size(); i += block_bytes) {
        std::memset(&source[i] + head, code, block_bytes - head);
      }
      const TestMatrix matrix = pack_source(format, 16, 64, source);
      const Product product(kernels, matrix.packed);
      for (const float value : {1.0f, -1.0f}) {
        const std::vector<float> x(64, value);
        const std::vector<float> out = product.run(x.data(), 64, 1);
        check_exactness(kernels, matrix, seen_activations(kernels, format, x, 1, 64), 1, out, product.stride());
      }
    }
  }
}

bool same_token(const std::vector<float>& a, int32_t token_a, const std::vector<float>& b, int32_t token_b,
                size_t stride) {
  return std::memcmp(&a[token_a * stride], &b[token_b * stride], stride * sizeof(float)) == 0;
}

void check_row_invariance(const LinearKernels& kernels, WeightFormat format, int32_t cols, Activations kind,
                          int32_t most) {
  const TestMatrix matrix = make_matrix(format, 37, cols, Fill::kRandom, cols);
  const Product product(kernels, matrix.packed);
  const size_t stride = product.stride();
  const size_t x_stride = static_cast<size_t>(cols) + 5;
  const std::vector<float> x = make_activations(most, static_cast<int32_t>(x_stride), kind, 8);
  std::vector<float> alone;
  for (int32_t token = 0; token < most; ++token) {
    const std::vector<float> out = product.run(&x[token * x_stride], x_stride, 1);
    alone.insert(alone.end(), out.begin(), out.end());
  }
  std::vector<int32_t> counts = {127, 128, 130, most};
  for (int32_t tokens = 1; tokens <= 40; ++tokens) counts.push_back(tokens);
  std::erase_if(counts, [&](int32_t tokens) { return tokens > most; });
  for (const int32_t tokens : counts) {
    const std::vector<float> out = product.run(x.data(), x_stride, tokens);
    for (int32_t token = 0; token < tokens; ++token) CHECK(same_token(out, token, alone, token, stride));
    CHECK(product.run(x.data(), x_stride, tokens, {0, 1, 3}) == out);
    CHECK(product.run(x.data(), x_stride, tokens, {0, 2, 3}) == out);
  }
  for (int32_t shift = 1; shift < 8; ++shift) {
    const std::vector<float> out = product.run(&x[shift * x_stride], x_stride, 21);
    for (int32_t token = 0; token < 21; ++token) CHECK(same_token(out, token, alone, token + shift, stride));
  }
}

void test_a_token_gives_the_same_bits_in_any_company(const LinearKernels& kernels) {
  for (const WeightFormat format : kFormats) {
    check_row_invariance(kernels, format, 256, Activations::kGaussian, 257);
    check_row_invariance(kernels, format, 256, Activations::kOutlierChannels, 257);
    if (block_shape(format).cols <= 32) check_row_invariance(kernels, format, 96, Activations::kGaussian, 257);
    // Panels larger than the L1 cache.
    if (!is_float(format)) check_row_invariance(kernels, format, 4096, Activations::kOutlierChannels, 29);
  }
}

void test_a_nan_reaches_the_outputs_of_its_token_only(const LinearKernels& kernels) {
  for (const WeightFormat format : kFormats) {
    const TestMatrix matrix = make_matrix(format, 16, 256, Fill::kRandom, 9);
    const Product product(kernels, matrix.packed);
    std::vector<float> x = make_activations(9, 256, Activations::kGaussian, 9);
    const std::vector<float> clean = product.run(x.data(), 256, 9);
    x[4 * 256 + 200] = kNan;
    const std::vector<float> out = product.run(x.data(), 256, 9);
    for (int32_t token = 0; token < 9; ++token) {
      if (token == 4) {
        CHECK(std::isnan(out[token * product.stride()]));
      } else {
        CHECK(same_token(out, token, clean, token, product.stride()));
      }
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
    test_products_against_float64(*table.kernels);
    test_products_are_within_one_percent_of_the_unrounded(*table.kernels);
    test_an_outlier_channel_costs_little_accuracy(*table.kernels);
    test_integer_sums_do_not_overflow_or_saturate(*table.kernels);
    test_a_token_gives_the_same_bits_in_any_company(*table.kernels);
    test_a_nan_reaches_the_outputs_of_its_token_only(*table.kernels);
  }
  return check_result();
}
