// Matrix kernels for AVX2 with FMA and F16C.
#include "kernels/linear_table.h"

#include "kernels/avx2/linear_float.h"
#include "kernels/avx2/linear_quantize.h"
#include "kernels/avx2/linear_tile.h"
#include "kernels/generic/unpack_row.h"

namespace octavo::avx2 {
namespace {

OCTAVO_INLINE Rows first_rows(int32_t count) { return count; }

#include "kernels/generic/linear_driver.h"

}  // namespace

const LinearKernels linear_kernels = {act_bytes, quantize, multiply, unpack_row};

}  // namespace octavo::avx2
