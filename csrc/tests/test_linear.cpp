// Matrix products of every table, against float64 and against themselves in other shapes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "activations.h"
#include "check.h"
#include "cpu/traits.h"
#include "tables.h"

namespace {

using namespace octavo_test;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kSentinel = -12345.0f;

// Everything one product needs; out has a padded row stride, and sentinels where nothing may be written.
class Product {
 public:
  Product(const LinearKernels& kernels, const octavo::PackedMatrix& weights, Precision precision = Precision::kInt8)
      : kernels_(kernels), weights_(weights), precision_(precision) {}

  size_t stride() const { return static_cast<size_t>(weights_.rows) + 7; }

  std::vector<float> run(const float* x, size_t x_stride, int32_t tokens) const {
    return run(x, x_stride, tokens, {0, weights_.num_panels});
  }
  // splits: panel boundaries, multiplied last part first.
  std::vector<float> run(const float* x, size_t x_stride, int32_t tokens, const std::vector<int32_t>& splits) const {
    const Aligned acts = quantize(kernels_, x, x_stride, tokens, weights_.cols, precision_);
    std::vector<float> out(tokens * stride(), kSentinel);
    for (size_t i = splits.size() - 1; i > 0; --i) {
      kernels_.multiply(weights_, {is_float(weights_.format) ? nullptr : acts.bytes(), precision_, x, x_stride, tokens},
                        splits[i - 1], splits[i], out.data(), stride(), nullptr);
    }
    return out;
  }

 private:
  const LinearKernels& kernels_;
  const octavo::PackedMatrix& weights_;
  Precision precision_;
};

// The activations the kernels really multiply: the quantised ones, or x itself for float weights.
std::vector<double> seen_activations(const LinearKernels& kernels, WeightFormat format, const std::vector<float>& x,
                                     int32_t tokens, int32_t cols, Precision precision = Precision::kInt8) {
  if (is_float(format)) return {x.begin(), x.end()};
  const Aligned acts = quantize(kernels, x.data(), cols, tokens, cols, precision);
  std::vector<double> seen;
  for (int32_t token = 0; token < tokens; ++token) {
    for (int32_t k = 0; k < cols; ++k) {
      double value = 0.0;
      for (int32_t i = 0; i < octavo::num_terms(precision); ++i) {
        value += term_at(acts, token, i, cols, precision).value(k);
      }
      seen.push_back(value);
    }
    for (int32_t i = 0; precision == Precision::kInt8 && i < kResidualBlocks; ++i) {
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
  // A block of Q2_K adds two scales and two minima, one of another format at most two addends.
  const double adds = matrix.packed.format == WeightFormat::Q2_K ? 4.0 : 2.0;
  const double steps = is_float(matrix.packed.format) ? cols + 2.0 : (num_blocks(cols) + kResidualBlocks) * adds + 6.0;
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

void check_product(const LinearKernels& kernels, WeightFormat format, int32_t rows, int32_t cols,
                   Precision precision) {
  for (const Fill fill : {Fill::kRandom, Fill::kExtremes}) {
    for (const Activations kind : {Activations::kGaussian, Activations::kExtremes, Activations::kOutlierChannels}) {
      const TestMatrix matrix = make_matrix(format, rows, cols, fill, rows * 1000 + cols);
      const Product product(kernels, matrix.packed, precision);
      const int32_t tokens = 3;
      const std::vector<float> x = make_activations(tokens, cols, kind, cols);
      const std::vector<float> out = product.run(x.data(), cols, tokens);
      check_exactness(kernels, matrix, seen_activations(kernels, format, x, tokens, cols, precision), tokens, out,
                      product.stride());
      check_nothing_else_was_written(out, rows, product.stride());
    }
  }
}

void test_products_against_float64(const LinearKernels& kernels) {
  for (const WeightFormat format : kFormats) {
    for (const int32_t cols : {32, 64, 96, 256, 576, 768, 2048}) {
      if (cols % facts_of(format).cols != 0) continue;
      for (const int32_t rows : {1, 15, 16, 17, 33}) check_product(kernels, format, rows, cols, Precision::kInt8);
      check_product(kernels, format, 17, cols, Precision::kInt8x2);
    }
  }
  for (const WeightFormat format : kFloatFormats) {
    for (const int32_t cols : {1, 2, 5, 63}) check_product(kernels, format, 19, cols, Precision::kInt8);
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

// Two terms everywhere leave about 1/250 of that, less than what packing costs Q4_K and Q6_K (2^-11 of a scale): so
// against float64 over the rows as packed.
void test_two_terms_are_within_a_ten_thousandth(const LinearKernels& kernels) {
  const int32_t tokens = 24;
  for (const WeightFormat format : kFormats) {
    for (const int32_t cols : {768, 2048}) {
      for (const Activations kind : {Activations::kGaussian, Activations::kOutlierChannels}) {
        TestMatrix matrix = make_matrix(format, 48, cols, Fill::kRandom, cols);
        std::vector<float> row(cols);
        for (int32_t r = 0; r < 48; ++r) {
          kernels.unpack_row(matrix.packed, r, 1.0f, row.data());
          for (int32_t k = 0; k < cols; ++k) matrix.weights[static_cast<size_t>(r) * cols + k].value = row[k];
        }
        const Product product(kernels, matrix.packed, Precision::kInt8x2);
        const std::vector<float> x = make_activations(tokens, cols, kind, cols);
        check_accuracy(matrix, x, tokens, product.run(x.data(), cols, tokens), product.stride(),
                       is_float(format) ? 1e-6 : 1e-4);
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
  for (const WeightFormat format : kFormats) {
    if (is_float(format)) continue;
    const FormatFacts& facts = facts_of(format);
    for (const uint8_t code : {0x00, 0xff, 0x80, 0x7f}) {
      std::vector<std::byte> source = make_source(format, 16, 256, Fill::kRandom, 1);
      for (size_t i = 0; i < source.size(); i += facts.bytes) {
        std::memset(&source[i] + facts.codes, code, facts.codes_bytes);
      }
      const TestMatrix matrix = pack_source(format, 16, 256, source);
      const Product product(kernels, matrix.packed);
      for (const float value : {1.0f, -1.0f}) {
        const std::vector<float> x(256, value);
        const std::vector<float> out = product.run(x.data(), 256, 1);
        check_exactness(kernels, matrix, seen_activations(kernels, format, x, 1, 256), 1, out, product.stride());
      }
    }
  }
}

bool same_token(const std::vector<float>& a, int32_t token_a, const std::vector<float>& b, int32_t token_b,
                size_t stride) {
  return std::memcmp(&a[token_a * stride], &b[token_b * stride], stride * sizeof(float)) == 0;
}

void check_row_invariance(const LinearKernels& kernels, WeightFormat format, int32_t cols, Activations kind,
                          int32_t most, Precision precision = Precision::kInt8) {
  const TestMatrix matrix = make_matrix(format, 37, cols, Fill::kRandom, cols);
  const Product product(kernels, matrix.packed, precision);
  const size_t stride = product.stride();
  const size_t x_stride = static_cast<size_t>(cols) + 5;
  const std::vector<float> x = make_activations(most, static_cast<int32_t>(x_stride), kind, 8);
  std::vector<float> alone;
  for (int32_t token = 0; token < most; ++token) {
    const std::vector<float> out = product.run(&x[token * x_stride], x_stride, 1);
    alone.insert(alone.end(), out.begin(), out.end());
  }
  std::vector<int32_t> counts = {63, 64, 127, 128, 130, most};
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
    if (facts_of(format).cols <= 32) check_row_invariance(kernels, format, 96, Activations::kGaussian, 257);
    if (is_float(format)) continue;
    check_row_invariance(kernels, format, 256, Activations::kOutlierChannels, 130, Precision::kInt8x2);
    // Panels larger than the L1 cache.
    check_row_invariance(kernels, format, 4096, Activations::kOutlierChannels, 29);
  }
}

void check_large_matrix(const LinearKernels& kernels, WeightFormat format, int32_t cols, int32_t panels) {
  constexpr int32_t kTokens = 21;
  const TestMatrix matrix = make_matrix(format, panels * octavo::kPanelRows - 3, cols, Fill::kRandom, 3);
  const Product product(kernels, matrix.packed);
  const std::vector<float> x = make_activations(kTokens, cols, Activations::kOutlierChannels, 8);
  const std::vector<float> out = product.run(x.data(), cols, kTokens);
  std::vector<int32_t> one_by_one(panels + 1);
  std::iota(one_by_one.begin(), one_by_one.end(), 0);
  CHECK(product.run(x.data(), cols, kTokens, one_by_one) == out);
  for (int32_t token = 0; token < kTokens; ++token) {
    CHECK(same_token(out, token, product.run(&x[token * cols], cols, 1), 0, product.stride()));
  }
}

// Several strips of panels, groups of tokens and parts of columns; then very wide panels.
void test_a_large_matrix_gives_the_bits_of_its_panels(const LinearKernels& kernels) {
  for (const WeightFormat format : {WeightFormat::Q4_1, WeightFormat::Q6_K, WeightFormat::Q8_0, WeightFormat::F16}) {
    check_large_matrix(kernels, format, 2048, 24);
  }
  check_large_matrix(kernels, WeightFormat::Q4_0, 16384 + 32, 2);
}

void test_a_nan_reaches_the_outputs_of_its_token_only(const LinearKernels& kernels) {
  for (const WeightFormat format : kFormats) {
    for (const Precision precision : kPrecisions) {
      const TestMatrix matrix = make_matrix(format, 16, 256, Fill::kRandom, 9);
      const Product product(kernels, matrix.packed, precision);
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
}

}  // namespace

int main() {
  for (const NamedTable& table : supported_tables()) {
    std::printf("table %s\n", table.name);
    test_products_against_float64(*table.kernels);
    test_products_are_within_one_percent_of_the_unrounded(*table.kernels);
    test_two_terms_are_within_a_ten_thousandth(*table.kernels);
    test_an_outlier_channel_costs_little_accuracy(*table.kernels);
    test_integer_sums_do_not_overflow_or_saturate(*table.kernels);
    for (const bool is_intel : {true, false}) {
      octavo::panels_in_pairs = octavo::all_streams_far_ahead = is_intel;
      test_a_token_gives_the_same_bits_in_any_company(*table.kernels);
      test_a_large_matrix_gives_the_bits_of_its_panels(*table.kernels);
      test_a_nan_reaches_the_outputs_of_its_token_only(*table.kernels);
    }
  }
  return check_result();
}
