// Peaks of what a compiler makes of plain C++, the way the scalar kernels are written: operands from the first-level
// cache.
#include "kernels/peak_table.h"

namespace octavo::scalar {
namespace {

#include "kernels/generic/peak_loops.h"

constexpr int32_t kRows = 16, kCols = 32;

using Word [[gnu::may_alias]] = uint64_t;

// Makes the compiler believe that memory was changed: it may not hoist work out of the loop around.
inline void touch(void* data) { asm volatile("" : : "r"(data) : "memory"); }

void run_int8(int64_t rounds) {
  alignas(64) int16_t codes[kRows][kCols] = {}, acts[kCols] = {};
  int32_t sums[kRows] = {};
  for (; rounds > 0; --rounds) {
    touch(codes), touch(acts);
    for (int32_t row = 0; row < kRows; ++row) {
      int32_t sum = 0;
      // As in linear.cpp: left alone, the compiler unrolls before it vectorises, and it stays scalar.
#pragma GCC unroll 4
      for (int32_t k = 0; k < kCols; ++k) sum += codes[row][k] * acts[k];
      sums[row] += sum;
    }
  }
  touch(sums);
}

// The compiler's own vectors, one variable each: an array of sums would stay in memory.
using Four [[gnu::vector_size(16)]] = float;

void run_f32(int64_t rounds) {
  Four weights[8] = {}, x[1] = {};
  Four a{}, b{}, c{}, d{}, e{}, f{}, g{}, h{};
  for (; rounds > 0; --rounds) {
    touch(weights), touch(x);
    a += weights[0] * x[0], b += weights[1] * x[0], c += weights[2] * x[0], d += weights[3] * x[0];
    e += weights[4] * x[0], f += weights[5] * x[0], g += weights[6] * x[0], h += weights[7] * x[0];
  }
  weights[0] = a + b + c + d + e + f + g + h;
  touch(weights);
}

}  // namespace

const PeakKernels peak_kernels = {
    .read = read_all<Word>,
    .int8 = {"C++, int16 products", kRows * kCols, run_int8},
    .bf16 = {},
    .f32 = {"C++, float products", 8 * 4, run_f32},
};

}  // namespace octavo::scalar
