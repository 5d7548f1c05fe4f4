#include "kernels/peak_table.h"

#include <immintrin.h>

namespace octavo::avx2 {
namespace {

#include "kernels/generic/peak_loops.h"

OCTAVO_PEAK_LOOP(run_f32, "vfmadd231ps")

}  // namespace

const PeakKernels peak_kernels = {
    .read = read_all<__m256i>,
    .int8 = {"vpmaddubsw + vpmaddwd ymm", kMaddubsOps * 32, run_maddubs<__m256i>},
    .bf16 = {},
    .f32 = {"vfmadd231ps ymm", kPeakLoopOps * 8, run_f32<__m256>},
};

}  // namespace octavo::avx2
