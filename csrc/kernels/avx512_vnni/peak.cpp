#include "kernels/peak_table.h"

#include <immintrin.h>

namespace octavo::avx512_vnni {
namespace {

#include "kernels/generic/peak_loops.h"

OCTAVO_PEAK_LOOP(run_int8, "vpdpbusd")
OCTAVO_PEAK_LOOP(run_bf16, "vdpbf16ps")
OCTAVO_PEAK_LOOP(run_f32, "vfmadd231ps")

}  // namespace

const PeakKernels peak_kernels = {
    .read = read_all<__m512i>,
    .int8 = {"vpdpbusd zmm", kPeakLoopOps * 64, run_int8<__m512i>},
    .bf16 = {"vdpbf16ps zmm", kPeakLoopOps * 32, run_bf16<__m512>, kAvx512Bf16},
    .f32 = {"vfmadd231ps zmm", kPeakLoopOps * 16, run_f32<__m512>},
};

}  // namespace octavo::avx512_vnni
