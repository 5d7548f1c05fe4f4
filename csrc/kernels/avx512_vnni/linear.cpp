// Matrix kernels for AVX-512 with VNNI.
#include "kernels/linear_table.h"

#include "kernels/avx512_vnni/linear_float.h"
#include "kernels/avx512_vnni/linear_quantize.h"
#include "kernels/avx512_vnni/linear_tile.h"
#include "kernels/generic/unpack_row.h"

namespace octavo::avx512_vnni {
namespace {

constexpr int kWidestTile = 8;
constexpr int kNarrowestTile = 1;
constexpr size_t kScratchPerRecord = sizeof(UnpackedRecord);

OCTAVO_INLINE Rows first_rows(int32_t count) { return static_cast<Rows>((1 << count) - 1); }

#include "kernels/generic/linear_driver.h"

}  // namespace

const LinearKernels linear_kernels = {act_bytes, quantize, multiply, scratch_bytes, unpack_row};

}  // namespace octavo::avx512_vnni
