// Half precision conversions, packed sizes, packing, and rows read back out of packed memory.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "check.h"
#include "formats/f16.h"
#include "tables.h"
#include "weights.h"

namespace {

using namespace octavo_test;
using octavo::f16_to_f32;
using octavo::f32_to_f16;

uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }

// Floats around every half: itself, the midpoint to the next one, and the neighbours of both.
std::vector<float> floats_around_halves() {
  std::vector<float> values;
  for (uint32_t half = 0; half < 0x7c00; ++half) {
    const float value = f16_to_f32(static_cast<uint16_t>(half));
    const float next = half == 0x7bff ? 65536.0f : f16_to_f32(static_cast<uint16_t>(half + 1));
    const float middle = value + (next - value) / 2;
    for (const float around : {value, middle}) {
      for (const float x : {std::nextafter(around, -INFINITY), around, std::nextafter(around, INFINITY)}) {
        values.push_back(x);
        values.push_back(-x);
      }
    }
  }
  for (const float x : {0.0f, -0.0f, INFINITY, -INFINITY, 1e-45f, 1e38f, -1e38f}) values.push_back(x);
  for (const uint32_t bits : {0x7f800001u, 0x7fc00000u, 0xffffffffu, 0x7fa12345u, 0xff812345u}) {
    values.push_back(__builtin_bit_cast(float, bits));
  }
  return values;
}

void test_halves_survive_the_round_trip() {
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const float value = f16_to_f32(static_cast<uint16_t>(half));
    if (std::isnan(value)) {
      CHECK((half & 0x7fff) > 0x7c00);
    } else {
      CHECK(f32_to_f16(value) == half);
    }
  }
  CHECK(f16_to_f32(0x0001) == 0x1p-24f);
  CHECK(f16_to_f32(0x03ff) == 1023 * 0x1p-24f);
  CHECK(f16_to_f32(0xc000) == -2.0f);
  CHECK(f16_to_f32(0x7bff) == 65504.0f);
}

void test_rounding_takes_the_nearest_half_and_ties_to_even() {
  for (uint32_t half = 0; half + 1 < 0x7c00; ++half) {
    const float value = f16_to_f32(static_cast<uint16_t>(half));
    const float middle = value + (f16_to_f32(static_cast<uint16_t>(half + 1)) - value) / 2;
    CHECK(f32_to_f16(middle) == half + half % 2);
    CHECK(f32_to_f16(std::nextafter(middle, 0.0f)) == half);
    CHECK(f32_to_f16(std::nextafter(middle, INFINITY)) == half + 1);
  }
  CHECK(f32_to_f16(65519.99f) == 0x7bff);
  CHECK(f32_to_f16(65520.0f) == 0x7c00);
}

#if defined(__x86_64__)
__attribute__((target("avx,f16c"))) void compare_with_f16c() {
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const float expected = _cvtsh_ss(static_cast<uint16_t>(half));
    CHECK(bits_of(f16_to_f32(static_cast<uint16_t>(half))) == bits_of(expected));
  }
  for (const float value : floats_around_halves()) {
    CHECK(f32_to_f16(value) == _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT));
  }
}
#endif

void test_conversions_equal_the_instructions_with_and_without_flush_to_zero() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx") || !__builtin_cpu_supports("f16c")) return;
  compare_with_f16c();
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(saved | 0x8040);  // flush to zero, denormals are zero
  compare_with_f16c();
  _mm_setcsr(saved);
#endif
}

void test_panel_sizes() {
  using octavo::packed_panel_bytes;
  CHECK(packed_panel_bytes(WeightFormat::Q4_0, 64) == 576);
  CHECK(packed_panel_bytes(WeightFormat::Q4_1, 576) == 9 * 640);
  CHECK(packed_panel_bytes(WeightFormat::Q5_0, 96) == 2 * 704);
  CHECK(packed_panel_bytes(WeightFormat::Q8_0, 32) == 1088);
  CHECK(packed_panel_bytes(WeightFormat::Q4_K, 256) == 4 * 640);
  CHECK(packed_panel_bytes(WeightFormat::Q6_K, 2048) == 32 * 896);
  CHECK(packed_panel_bytes(WeightFormat::Q5_1, 96) == 2 * 768);
  CHECK(packed_panel_bytes(WeightFormat::Q5_K, 256) == 4 * 768);
  CHECK(packed_panel_bytes(WeightFormat::Q2_K, 512) == 8 * 512);
  CHECK(packed_panel_bytes(WeightFormat::Q3_K, 256) == 4 * 512);
  CHECK(packed_panel_bytes(WeightFormat::IQ4_NL, 32) == 576);
  CHECK(packed_panel_bytes(WeightFormat::IQ4_XS, 256) == 4 * 576);
  CHECK(packed_panel_bytes(WeightFormat::F32, 5) == 5 * 64);
  CHECK(packed_panel_bytes(WeightFormat::F16, 5) == 192);
  CHECK(packed_panel_bytes(WeightFormat::BF16, 5) == 192);
  for (const WeightFormat format : kFormats) {
    CHECK(packed_panel_bytes(format, 0) == 0);
    CHECK(packed_panel_bytes(format, -32) == 0);
    CHECK(packed_panel_bytes(format, 256) % 64 == 0);
    if (!is_float(format)) CHECK(packed_panel_bytes(format, 48) == 0);
    if (facts_of(format).cols == 256) CHECK(packed_panel_bytes(format, 96) == 0);
    const int32_t row_bytes = 512 / facts_of(format).cols * facts_of(format).bytes;
    CHECK(octavo::source_row_bytes(format, 512) == static_cast<size_t>(row_bytes));
  }
  CHECK(packed_panel_bytes(static_cast<WeightFormat>(99), 64) == 0);
}

void test_any_split_of_panels_packs_the_same_bytes() {
  for (const WeightFormat format : kFormats) {
    const TestMatrix whole = make_matrix(format, 71, 512, Fill::kRandom, 1);
    const Aligned pieces(whole.packed.panel_bytes * 5);
    for (const int32_t p : {3, 0, 4, 1, 2}) {
      octavo::pack_panels(format, whole.source.data(), 71, 512, p, p + 1, pieces.bytes());
    }
    CHECK(std::memcmp(pieces.bytes(), whole.packed.data, whole.packed.panel_bytes * 5) == 0);
  }
}

void test_source_may_start_at_any_byte() {
  for (const WeightFormat format : kFormats) {
    const TestMatrix aligned = make_matrix(format, 17, 256, Fill::kRandom, 2);
    std::vector<std::byte> shifted(aligned.source.size() + 1);
    std::copy(aligned.source.begin(), aligned.source.end(), shifted.begin() + 1);
    const Aligned packed(aligned.packed.panel_bytes * 2);
    octavo::pack_panels(format, shifted.data() + 1, 17, 256, 0, 2, packed.bytes());
    CHECK(std::memcmp(packed.bytes(), aligned.packed.data, aligned.packed.panel_bytes * 2) == 0);
  }
}

bool is_lossless(WeightFormat format) { return facts_of(format).cols < 256; }

// Rows read back are the dequantised ones: bit for bit, or within the rounding of one scale product to f16.
void check_rows(const octavo::LinearKernels& kernels, const TestMatrix& matrix, float scale) {
  std::vector<float> row(matrix.packed.cols);
  for (int32_t r = 0; r < matrix.packed.rows; ++r) {
    kernels.unpack_row(matrix.packed, r, scale, row.data());
    for (int32_t k = 0; k < matrix.packed.cols; ++k) {
      const Weight weight = matrix.weights[static_cast<size_t>(r) * matrix.packed.cols + k];
      if (is_lossless(matrix.packed.format)) {
        CHECK(bits_of(row[k]) == bits_of(weight.value * scale));
      } else {
        const double error = std::fabs(static_cast<double>(row[k]) - weight.value * scale);
        CHECK(error <= 0x1.01p-11 * scale * weight.magnitude);
      }
    }
  }
}

void test_rows_read_back_as_dequantised() {
  for (const NamedTable& table : supported_tables()) {
    for (const WeightFormat format : kFormats) {
      for (const Fill fill : {Fill::kRandom, Fill::kExtremes}) {
        for (const int32_t cols : {32, 64, 96, 256, 768}) {
          if (cols % facts_of(format).cols != 0) continue;
          const TestMatrix matrix = make_matrix(format, 35, cols, fill, 3);
          check_rows(*table.kernels, matrix, 1.0f);
          check_rows(*table.kernels, matrix, 25.298221f);
        }
      }
    }
  }
}

// Scale products that are half subnormals: exact, since every half is a multiple of 2^-24 and sub-scales are integers.
void test_k_quant_scales_are_within_2_to_minus_11_down_to_subnormals() {
  for (const WeightFormat format : kFormats) {
    if (is_lossless(format)) continue;
    const FormatFacts& facts = facts_of(format);
    for (const uint16_t d : {0x0001, 0x0003, 0x000f, 0x0155, 0x03ff, 0x0400, 0x0555, 0x1234, 0x3c00}) {
      for (const Fill fill : {Fill::kRandom, Fill::kExtremes}) {
        std::vector<std::byte> source = make_source(format, 3, 512, fill, d);
        for (size_t i = 0; i < source.size(); i += facts.bytes) {
          std::memcpy(&source[i + facts.d], &d, 2);
          if (facts.m >= 0) std::memcpy(&source[i + facts.m], &d, 2);
        }
        check_rows(octavo::scalar::linear_kernels, pack_source(format, 3, 512, source), 1.0f);
      }
    }
  }
}

void test_scale_products_past_the_range_saturate_and_nan_stays() {
  std::vector<std::byte> source = make_source(WeightFormat::Q6_K, 1, 256, Fill::kRandom, 4);
  octavo::BlockQ6_K block;
  std::memcpy(&block, source.data(), sizeof(block));
  std::fill(std::begin(block.scales), std::end(block.scales), int8_t{100});
  std::vector<float> row(256);
  for (const uint16_t d : {0x7bff, 0xfbff, 0x7c00, 0x7e00}) {
    block.d = d;
    std::memcpy(source.data(), &block, sizeof(block));
    const TestMatrix matrix = pack_source(WeightFormat::Q6_K, 1, 256, source);
    octavo::scalar::linear_kernels.unpack_row(matrix.packed, 0, 1.0f, row.data());
    for (const float value : row) CHECK(d == 0x7e00 ? std::isnan(value) : std::fabs(value) <= 32 * 65504.0f);
  }
}

}  // namespace

int main() {
  test_halves_survive_the_round_trip();
  test_rounding_takes_the_nearest_half_and_ties_to_even();
  test_conversions_equal_the_instructions_with_and_without_flush_to_zero();
  test_panel_sizes();
  test_any_split_of_panels_packs_the_same_bytes();
  test_source_may_start_at_any_byte();
  test_rows_read_back_as_dequantised();
  test_k_quant_scales_are_within_2_to_minus_11_down_to_subnormals();
  test_scale_products_past_the_range_saturate_and_nan_stays();
  return check_result();
}
