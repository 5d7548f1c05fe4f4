#include "kernels/step_table.h"

#include "kernels/isa/intrinsics_avx512.h"

namespace octavo::avx512_vnni {
namespace {

#include "kernels/isa/vec_avx512.h"
#include "kernels/generic/step_math.h"
#include "kernels/generic/step_vocab.h"
#include "kernels/generic/step_attention.h"

}  // namespace

const StepKernels step_kernels = {
    .rms_norm = rms_norm,
    .rope = rope,
    .gated = gated,
    .add = add_rows,
    .softcap = softcap,
    .write_kv = write_kv,
    .attend = attend,
    .merge = merge,
    .finish = finish,
    .greatest = greatest,
    .find = find,
    .exp_sum = exp_sum,
    .count_greater = count_greater,
    .collect_greater = collect_greater,
};

}  // namespace octavo::avx512_vnni
