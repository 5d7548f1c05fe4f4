#include "probe/work.h"

namespace octavo {
namespace {

MatrixWork work_of(const Function& function, const WeightStore& weights) {
  MatrixWork work;
  for (const Op& op : function.ops) {
    if (op.kind != OpKind::kLinear) continue;
    const PackedMatrix& matrix = weights.matrix(op.matrix);
    const bool is_float = is_float_format(matrix.format);
    (is_float ? work.float_macs : work.int8_macs) += int64_t{matrix.rows} * matrix.cols;
    work.bytes += static_cast<int64_t>(matrix.num_panels * matrix.panel_bytes);
  }
  return work;
}

}  // namespace

ProgramWork work_of(const Program& program, const WeightStore& weights) {
  ProgramWork work{work_of(program.body(), weights), work_of(program.head(), weights), {}};
  for (const AttentionSpec& attention : program.attentions()) {
    work.windows.push_back(attention.shape.window);
  }
  return work;
}

}  // namespace octavo
