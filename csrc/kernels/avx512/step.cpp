#include "formats/bf16.h"
#include "formats/f16.h"
#include "kernels/step_table.h"

#include "kernels/isa/intrinsics_avx512.h"

namespace octavo::avx512 {
namespace {

#include "kernels/isa/vec_avx512.h"
#include "kernels/generic/step_math.h"
#include "kernels/generic/step_vocab.h"
#include "kernels/generic/step_kv.h"
#include "kernels/generic/step_attention.h"

}  // namespace

#include "kernels/generic/step_kernels.h"

}  // namespace octavo::avx512
