#include "kernels/isa/vec_scalar.h"
#include "kernels/step_table.h"

namespace octavo::scalar {
namespace {

#include "kernels/generic/step_math.h"
#include "kernels/generic/step_vocab.h"
#include "kernels/generic/step_kv.h"
#include "kernels/generic/step_attention.h"

}  // namespace

#include "kernels/generic/step_kernels.h"

}  // namespace octavo::scalar
