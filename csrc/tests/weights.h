// Random weight matrices in GGUF's byte order, and their dequantisation written from the format descriptions alone, for
// the pack and multiply tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <vector>

#include "formats/f16.h"
#include "formats/packed.h"
#include "formats/q4_0.h"
#include "formats/q4_1.h"
#include "formats/q4_k.h"
#include "formats/q5_0.h"
#include "formats/q6_k.h"
#include "formats/q8_0.h"

namespace octavo_test {

using octavo::WeightFormat;

inline constexpr WeightFormat kFormats[] = {WeightFormat::F32,  WeightFormat::F16,  WeightFormat::Q4_0,
                                            WeightFormat::Q4_1, WeightFormat::Q5_0, WeightFormat::Q8_0,
                                            WeightFormat::Q4_K, WeightFormat::Q6_K};

inline const char* format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::F32: return "F32";
    case WeightFormat::F16: return "F16";
    case WeightFormat::Q4_0: return "Q4_0";
    case WeightFormat::Q4_1: return "Q4_1";
    case WeightFormat::Q5_0: return "Q5_0";
    case WeightFormat::Q8_0: return "Q8_0";
    case WeightFormat::Q4_K: return "Q4_K";
    case WeightFormat::Q6_K: return "Q6_K";
  }
  return "?";
}

inline bool is_float(WeightFormat format) { return format == WeightFormat::F32 || format == WeightFormat::F16; }

struct BlockShape {
  int32_t cols;
  int32_t bytes;
};

inline BlockShape block_shape(WeightFormat format) {
  switch (format) {
    case WeightFormat::F32: return {1, 4};
    case WeightFormat::F16: return {1, 2};
    case WeightFormat::Q4_0: return {32, 18};
    case WeightFormat::Q4_1: return {32, 20};
    case WeightFormat::Q5_0: return {32, 22};
    case WeightFormat::Q8_0: return {32, 34};
    case WeightFormat::Q4_K: return {256, 144};
    case WeightFormat::Q6_K: return {256, 210};
  }
  return {1, 0};
}

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

// One block's bytes: random codes, then scales (and extreme codes) put in place.
inline void fill_block(WeightFormat format, Fill fill, std::mt19937& random, uint8_t* block) {
  const BlockShape shape = block_shape(format);
  const auto uniform = [&](float low, float high) { return std::uniform_real_distribution<float>(low, high)(random); };
  const auto put_half = [&](int32_t offset, float value) {
    const uint16_t half = octavo::f32_to_f16(value);
    std::memcpy(block + offset, &half, 2);
  };
  if (format == WeightFormat::F32) {
    const float value = uniform(-1.0f, 1.0f);
    std::memcpy(block, &value, 4);
    return;
  }
  if (format == WeightFormat::F16) return put_half(0, uniform(-1.0f, 1.0f));

  const uint32_t pattern = random() % 3;
  for (int32_t i = 0; i < shape.bytes; ++i) {
    if (fill == Fill::kRandom) {
      block[i] = static_cast<uint8_t>(random());
    } else {
      block[i] = pattern == 0 ? 0x00 : pattern == 1 ? 0xff : (i % 2 ? 0xff : 0x00);
      // int8 codes: 0x80 is the lowest and 0x7f the highest.
      if (format == WeightFormat::Q8_0) block[i] = pattern == 0 ? 0x80 : pattern == 1 ? 0x7f : (i % 2 ? 0x80 : 0x7f);
    }
  }
  const float sign = random() % 2 ? 1.0f : -1.0f;
  switch (format) {
    case WeightFormat::Q4_1:
      put_half(0, sign * uniform(0.001f, 0.01f));
      put_half(2, uniform(-0.1f, 0.1f));
      break;
    case WeightFormat::Q4_K:
      put_half(0, uniform(0.0001f, 0.001f));
      put_half(2, uniform(0.0001f, 0.001f));
      break;
    case WeightFormat::Q6_K: put_half(208, sign * uniform(0.00001f, 0.0001f)); break;
    default: put_half(0, sign * uniform(0.001f, 0.01f)); break;
  }
}

inline std::vector<std::byte> make_source(WeightFormat format, int32_t rows, int32_t cols, Fill fill, uint32_t seed) {
  const BlockShape shape = block_shape(format);
  std::mt19937 random(seed);
  std::vector<std::byte> source(static_cast<size_t>(rows) * (cols / shape.cols) * shape.bytes);
  for (size_t i = 0; i < source.size(); i += shape.bytes) {
    fill_block(format, fill, random, reinterpret_cast<uint8_t*>(source.data() + i));
  }
  return source;
}

struct Weight {
  float value;
  float magnitude;  // |scale * code| + |minimum|: what rounding errors are relative to
};

inline Weight dequantise_q4_k(const octavo::BlockQ4_K& block, int32_t k) {
  const int32_t i = k / 32;
  // The 12 bytes as three little-endian words: scales 0..3, mins 0..3, then the low nibbles of the other four of each.
  int32_t scale = block.scales[i % 4] & 63;
  int32_t min = block.scales[4 + i % 4] & 63;
  if (i >= 4) {
    scale = (block.scales[8 + i % 4] % 16) + 16 * (block.scales[i % 4] / 64);
    min = (block.scales[8 + i % 4] / 16) + 16 * (block.scales[4 + i % 4] / 64);
  }
  const uint8_t pair = block.nibbles[k / 64 * 32 + k % 32];
  const int32_t code = i % 2 ? pair / 16 : pair % 16;
  const float scaled = octavo::f16_to_f32(block.d) * static_cast<float>(scale) * static_cast<float>(code);
  const float offset = octavo::f16_to_f32(block.dmin) * static_cast<float>(min);
  return {scaled - offset, std::fabs(scaled) + std::fabs(offset)};
}

inline Weight dequantise_q6_k(const octavo::BlockQ6_K& block, int32_t k) {
  const int32_t low_byte = block.nibbles[k / 128 * 64 + k % 64];
  const int32_t low = k % 128 < 64 ? low_byte % 16 : low_byte / 16;
  const int32_t high = block.upper[k / 128 * 32 + k % 32] >> (k % 128 / 32 * 2) & 3;
  const float scale = octavo::f16_to_f32(block.d) * static_cast<float>(block.scales[k / 16]);
  const float value = scale * static_cast<float>(low + 16 * high - 32);
  return {value, std::fabs(scale) * 32.0f};
}

template <class T>
T read_block(const std::byte* source, int32_t index) {
  T block;
  std::memcpy(&block, source + static_cast<size_t>(index) * sizeof(T), sizeof(T));
  return block;
}

// Weight k of a row whose bytes start at `row`, in the float operations of the formats' definitions.
inline Weight dequantise(WeightFormat format, const std::byte* row, int32_t k) {
  const auto nibble = [](const uint8_t (&codes)[16], int32_t i) { return i < 16 ? codes[i] % 16 : codes[i - 16] / 16; };
  const auto plain = [](float value) { return Weight{value, std::fabs(value)}; };
  const auto scaled = [](uint16_t d, int32_t code, int32_t largest) {
    const float scale = octavo::f16_to_f32(d);
    return Weight{scale * static_cast<float>(code), std::fabs(scale) * static_cast<float>(largest)};
  };
  switch (format) {
    case WeightFormat::F32: return plain(read_block<float>(row, k));
    case WeightFormat::F16: return plain(octavo::f16_to_f32(read_block<uint16_t>(row, k)));
    case WeightFormat::Q4_0: {
      const auto block = read_block<octavo::BlockQ4_0>(row, k / 32);
      return scaled(block.d, nibble(block.codes, k % 32) - 8, 8);
    }
    case WeightFormat::Q4_1: {
      const auto block = read_block<octavo::BlockQ4_1>(row, k / 32);
      const float product = octavo::f16_to_f32(block.d) * static_cast<float>(nibble(block.codes, k % 32));
      const float min = octavo::f16_to_f32(block.m);
      return {product + min, std::fabs(product) + std::fabs(min)};
    }
    case WeightFormat::Q5_0: {
      const auto block = read_block<octavo::BlockQ5_0>(row, k / 32);
      const int32_t fifth = block.fifth[k % 32 / 8] >> (k % 8) & 1;
      return scaled(block.d, nibble(block.nibbles, k % 32) + 16 * fifth - 16, 16);
    }
    case WeightFormat::Q8_0: {
      const auto block = read_block<octavo::BlockQ8_0>(row, k / 32);
      return scaled(block.d, block.codes[k % 32], 128);
    }
    case WeightFormat::Q4_K: return dequantise_q4_k(read_block<octavo::BlockQ4_K>(row, k / 256), k % 256);
    case WeightFormat::Q6_K: return dequantise_q6_k(read_block<octavo::BlockQ6_K>(row, k / 256), k % 256);
  }
  return {0.0f, 0.0f};
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
