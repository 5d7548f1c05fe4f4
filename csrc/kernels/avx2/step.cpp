#include "kernels/isa/vec_avx2.h"
#include "kernels/step_table.h"

namespace octavo::avx2 {
namespace {

#include "kernels/generic/step_math.h"
#include "kernels/generic/step_vocab.h"
#include "kernels/generic/step_kv.h"
#include "kernels/generic/step_attention.h"

}  // namespace

#include "kernels/generic/step_kernels.h"

}  // namespace octavo::avx2
