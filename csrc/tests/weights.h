// Random weight matrices in GGUF's byte order, packed and dequantised, for the pack and multiply tests.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <new>
#include <random>
#include <vector>

#include "dequantise.h"
#include "formats/f16.h"
#include "formats/packed.h"

namespace octavo_test {

// Where the bytes of a source block lie.
struct FormatFacts {
  WeightFormat format;
  const char* name;
  int32_t cols;
  int32_t bytes;
  int32_t codes;        // offset of the codes, high bits included...
  int32_t codes_bytes;  // ...and their bytes
  int32_t d;            // offset of the f16 scale; -1 for floats
  int32_t m;            // offset of the f16 minimum, or of the scale of the minima; -1 if there is none
  float largest_scale;  // of the integer scales, in magnitude; 1 if there are none
};

inline constexpr FormatFacts kFacts[] = {
    {WeightFormat::F32, "F32", 1, 4, 0, 4, -1, -1, 1.0f},
    {WeightFormat::F16, "F16", 1, 2, 0, 2, -1, -1, 1.0f},
    {WeightFormat::BF16, "BF16", 1, 2, 0, 2, -1, -1, 1.0f},
    {WeightFormat::Q2_K, "Q2_K", 256, 84, 16, 64, 80, 82, 15.0f},
    {WeightFormat::Q3_K, "Q3_K", 256, 110, 0, 96, 108, -1, 32.0f},
    {WeightFormat::Q4_0, "Q4_0", 32, 18, 2, 16, 0, -1, 1.0f},
    {WeightFormat::Q4_1, "Q4_1", 32, 20, 4, 16, 0, 2, 1.0f},
    {WeightFormat::Q4_K, "Q4_K", 256, 144, 16, 128, 0, 2, 63.0f},
    {WeightFormat::Q5_0, "Q5_0", 32, 22, 2, 20, 0, -1, 1.0f},
    {WeightFormat::Q5_1, "Q5_1", 32, 24, 4, 20, 0, 2, 1.0f},
    {WeightFormat::Q5_K, "Q5_K", 256, 176, 16, 160, 0, 2, 63.0f},
    {WeightFormat::Q6_K, "Q6_K", 256, 210, 0, 192, 208, -1, 128.0f},
    {WeightFormat::Q8_0, "Q8_0", 32, 34, 2, 32, 0, -1, 1.0f},
    {WeightFormat::IQ4_NL, "IQ4_NL", 32, 18, 2, 16, 0, -1, 1.0f},
    {WeightFormat::IQ4_XS, "IQ4_XS", 256, 136, 8, 128, 0, -1, 32.0f},
};

inline constexpr WeightFormat kFormats[] = {
    WeightFormat::F32,  WeightFormat::F16,  WeightFormat::BF16, WeightFormat::Q2_K,   WeightFormat::Q3_K,
    WeightFormat::Q4_0, WeightFormat::Q4_1, WeightFormat::Q4_K, WeightFormat::Q5_0,   WeightFormat::Q5_1,
    WeightFormat::Q5_K, WeightFormat::Q6_K, WeightFormat::Q8_0, WeightFormat::IQ4_NL, WeightFormat::IQ4_XS,
};
inline constexpr WeightFormat kFloatFormats[] = {WeightFormat::F32, WeightFormat::F16, WeightFormat::BF16};
static_assert(std::size(kFormats) == std::size(kFacts));

inline const FormatFacts& facts_of(WeightFormat format) {
  for (const FormatFacts& facts : kFacts) {
    if (facts.format == format) return facts;
  }
  std::abort();
}

inline const char* format_name(WeightFormat format) { return facts_of(format).name; }
inline bool is_float(WeightFormat format) { return octavo::is_float_format(format); }

// 64-byte aligned memory, filled with 0xff: NaN wherever a float or half is read without having been written.
class Aligned {
 public:
  explicit Aligned(size_t bytes) : size_((bytes + 64) / 64 * 64) {
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(64, size_)));
    if (data_ == nullptr) throw std::bad_alloc();
    std::memset(data_.get(), 0xff, size_);
  }
  std::byte* bytes() const { return data_.get(); }
  float* floats() const { return reinterpret_cast<float*>(data_.get()); }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  size_t size_;
  std::unique_ptr<std::byte, Free> data_;
};

enum class Fill {
  kRandom,    // any code, scales of both signs
  kExtremes,  // each block all lowest, all highest or alternating codes; scales at the ends of their range
};

inline void put_half(std::byte* block, int32_t offset, float value) {
  const uint16_t half = octavo::f32_to_f16(value);
  std::memcpy(block + offset, &half, 2);
}

inline float uniform(std::mt19937& random, float low, float high) {
  return std::uniform_real_distribution<float>(low, high)(random);
}

// One block's bytes: random codes and integer scales, then a scale (and extreme codes) put in place.
inline void fill_block(const FormatFacts& facts, Fill fill, std::mt19937& random, std::byte* block) {
  if (is_float(facts.format)) {
    const float value = uniform(random, -1.0f, 1.0f);
    if (facts.format == WeightFormat::F16) return put_half(block, 0, value);
    // BF16 is the upper half of a float.
    std::memcpy(block, reinterpret_cast<const std::byte*>(&value) + 4 - facts.bytes, facts.bytes);
    return;
  }
  const uint32_t pattern = random() % 3;
  for (int32_t i = 0; i < facts.bytes; ++i) {
    uint32_t value = pattern == 0 ? 0x00 : pattern == 1 ? 0xff : (i % 2 ? 0xff : 0x00);
    // int8 codes: 0x80 is the lowest and 0x7f the highest.
    if (facts.format == WeightFormat::Q8_0) value ^= 0x80;
    block[i] = static_cast<std::byte>(fill == Fill::kRandom ? random() : value);
  }
  const float sign = random() % 2 ? 1.0f : -1.0f;
  const bool has_small_min = facts.m >= 0 && facts.cols == 256;
  put_half(block, facts.d, (has_small_min ? 1.0f : sign) * uniform(random, 0.001f, 0.01f) / facts.largest_scale);
  if (has_small_min) {
    put_half(block, facts.m, uniform(random, 0.001f, 0.01f) / facts.largest_scale);
  } else if (facts.m >= 0) {
    put_half(block, facts.m, uniform(random, -0.1f, 0.1f));
  }
}

inline std::vector<std::byte> make_source(WeightFormat format, int32_t rows, int32_t cols, Fill fill, uint32_t seed) {
  const FormatFacts& facts = facts_of(format);
  std::mt19937 random(seed);
  std::vector<std::byte> source(static_cast<size_t>(rows) * (cols / facts.cols) * facts.bytes);
  for (size_t i = 0; i < source.size(); i += facts.bytes) fill_block(facts, fill, random, source.data() + i);
  return source;
}

// A matrix in both forms.
struct TestMatrix {
  std::vector<std::byte> source;
  std::vector<Weight> weights;  // [rows, cols]
  Aligned memory;
  octavo::PackedMatrix packed;
};

inline TestMatrix pack_source(WeightFormat format, int32_t rows, int32_t cols, std::vector<std::byte> source) {
  const size_t panel_bytes = octavo::packed_panel_bytes(format, cols);
  const int32_t num_panels = (rows + octavo::kPanelRows - 1) / octavo::kPanelRows;
  const size_t row_bytes = source.size() / rows;
  Aligned memory(panel_bytes * num_panels);
  octavo::pack_panels(format, source.data(), rows, cols, 0, num_panels, memory.bytes());
  std::vector<Weight> weights;
  weights.reserve(static_cast<size_t>(rows) * cols);
  for (int32_t row = 0; row < rows; ++row) {
    for (int32_t k = 0; k < cols; ++k) weights.push_back(dequantise(format, source.data() + row * row_bytes, k));
  }
  const octavo::PackedMatrix packed = {format, rows, cols, num_panels, panel_bytes, memory.bytes()};
  return {std::move(source), std::move(weights), std::move(memory), packed};
}

inline TestMatrix make_matrix(WeightFormat format, int32_t rows, int32_t cols, Fill fill, uint32_t seed) {
  return pack_source(format, rows, cols, make_source(format, rows, cols, fill, seed));
}

}  // namespace octavo_test
