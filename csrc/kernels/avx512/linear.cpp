// Matrix kernels for AVX-512 without VNNI (F, BW, VL, DQ).
#include "kernels/linear_table.h"

#include "kernels/generic/act_tile.h"
#include "kernels/generic/unpack_row.h"
#include "kernels/isa/intrinsics_avx512.h"

namespace octavo::avx512 {
namespace {

#include "kernels/isa/linear_avx512_sources.h"
#include "kernels/avx512/linear_dot.h"
#include "kernels/isa/linear_avx512_tile.h"
#include "kernels/isa/linear_avx512_unpacked.h"
#include "kernels/isa/linear_avx512_panel_pair.h"
#include "kernels/isa/linear_avx512_float.h"
#include "kernels/isa/linear_avx512_quantize.h"
#include "kernels/generic/linear_driver.h"

}  // namespace

const LinearKernels linear_kernels = {act_bytes, quantize, multiply, unpack_row};

}  // namespace octavo::avx512
