// Packed weight matrices: what the multiply kernels read. The layout depends on the format only, never on the ISA.
//
// A matrix [rows, cols] is cut into panels of 16 output rows; a panel is one sequential stream of records of 64 k
// (two 32-blocks; the last record is padded with zeros), scales next to their codes. In a 64-byte group, lane r
// (4 bytes) belongs to row r of the panel and holds 4 consecutive k ("k-group", 8 per 32-block).
//
// Everything is in the order in which a kernel needs it, in whole cache lines: scales first, then of each block the
// upper bits of its codes before the lower. Hardware prefetchers follow a stream that never steps back: with scales at
// the end of a record one token read Q5_0 and Q6_K from memory at half the speed, 4-bit formats at 0.8 (Zen 4).
//
//   Q2_K        2 x [d, m: 2 x 32 B each (one of each per 16 k)][2-bit plane 128 B]              512 B
//   Q3_K        2 x [d: 2 x 32 B (one scale per 16 k)][bit plane 64 B][2-bit plane 128 B]        512 B
//   Q4_0, IQ4   [16 f16 d0][16 f16 d1] + 2 x [nibbles 4 x 64 B]                                  576 B
//   Q4_1, Q4_K  [d0][d1][16 f16 m0][16 f16 m1] + the same                                        640 B
//   Q5_0        [d0][d1] + 2 x [bit plane 64 B (bit g = k-group g)][nibbles 256 B]               704 B
//   Q5_1, Q5_K  [d0][d1][m0][m1] + the same                                                      768 B
//   Q6_K        2 x [d: 2 x 32 B (one scale per 16 k)][2-bit plane 128 B][nibbles 256 B]         896 B
//   Q8_0        [d0][d1] + 2 x [8 x 64 B of code + 128]                                         1088 B
//   floats      [k][16 rows], no records
//
// Nibble group j holds k-group j in the low and k-group 4 + j in the high nibble of every byte.
// Codes are unsigned; the offset (4, 8, 16, 32, 128) is taken off through the integer sum of the activation block.
// Those of IQ4_NL and IQ4_XS (IQ4 above) stand for 16 int8 levels, which a kernel looks up.
// Formats of 256-blocks have integer scales and minima under a d and dmin: d*sc and -dmin*m are rounded once to f16, so
// Q4_K is packed as Q4_1, Q5_K as Q5_1, IQ4_XS as IQ4_NL. A half is a multiple of 2^-24 and sc and m are integers, so a
// product in the subnormal range is exact and any other has a relative error of at most 2^-11; products past the range
// of f16 saturate. All other formats pack losslessly.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

// ggml's type numbers.
enum class WeightFormat : int32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q2_K = 10,
  Q3_K = 11,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  IQ4_NL = 20,
  IQ4_XS = 23,
  BF16 = 30,
};

// Whether the format multiplies float activations; all others multiply quantised ones.
constexpr bool is_float_format(WeightFormat format) {
  return format == WeightFormat::F32 || format == WeightFormat::F16 || format == WeightFormat::BF16;
}

// One more for each change to how any format above is packed: files of packed weights name it.
inline constexpr int32_t kPackedLayout = 2;

inline constexpr int32_t kPanelRows = 16;
inline constexpr int32_t kRecordCols = 64;

struct PackedMatrix {
  WeightFormat format;
  int32_t rows;           // output rows; the last panel is padded with zero rows
  int32_t cols;
  int32_t num_panels;     // ceil(rows / 16)
  size_t panel_bytes;     // multiple of 64
  const std::byte* data;  // 64-byte aligned, num_panels * panel_bytes
};

// Bytes of one row in GGUF order; `cols` fills whole blocks. 0 for an unknown format.
size_t source_row_bytes(WeightFormat format, int32_t cols);

// Bytes of one panel; 0 if the format or the number of columns cannot be packed (a row must be whole source blocks).
size_t packed_panel_bytes(WeightFormat format, int32_t cols);

// Repacks panels [panel_begin, panel_end) from `source`, the tensor's bytes in GGUF order (rows * row bytes), into `out`
// (the whole matrix's packed memory). Panels are independent: any thread may pack any range.
void pack_panels(WeightFormat format, const std::byte* source, int32_t rows, int32_t cols, int32_t panel_begin,
                 int32_t panel_end, std::byte* out);

}  // namespace octavo
