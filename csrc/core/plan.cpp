#include "core/plan.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/arena.h"

namespace octavo {
namespace {

// Rows start on a cache line, and one line apart from a power of two: columns of equal sets would evict each other.
size_t stride_of(int32_t width) { return round_up(width, 16) + 16; }

// Buffers by stride, given back and reused. Only among equal strides: a thread may be some stages ahead, and rows of one
// token must not overlap rows of another thread's token.
class BufferPool {
 public:
  BufferPool(bool is_copied, size_t* total) : is_copied_(is_copied), total_(total) {}

  Buffer take(int32_t width) {
    const size_t stride = stride_of(width);
    std::vector<size_t>& free = free_[stride];
    if (!free.empty()) {
      const size_t offset = free.back();
      free.pop_back();
      return {offset, stride, width, is_copied_};
    }
    const size_t offset = *total_;
    *total_ += stride;
    return {offset, stride, width, is_copied_};
  }
  void give(const Buffer& buffer) { free_[buffer.stride].push_back(buffer.offset); }

 private:
  const bool is_copied_;
  size_t* total_;
  std::map<size_t, std::vector<size_t>> free_;
};

// Ops in the order they run. Linears that read one value form a group, run at the place of the first.
std::vector<std::vector<const Op*>> group_ops(const Function& function) {
  std::vector<std::vector<const Op*>> groups;
  std::map<ValueId, size_t> linear_group;
  for (const Op& op : function.ops) {
    if (op.kind == OpKind::kLinear) {
      const auto [found, is_new] = linear_group.try_emplace(op.in[0], groups.size());
      if (!is_new) {
        groups[found->second].push_back(&op);
        continue;
      }
    }
    groups.push_back({&op});
  }
  return groups;
}

class Planner {
 public:
  Planner(const Program& program, const WeightStore& weights, bool is_head)
      : program_(program),
        weights_(weights),
        function_(is_head ? program.head() : program.body()),
        shared_(false, &plan_.shared_floats),
        copied_(true, &plan_.copied_floats),
        buffers_(function_.widths.size()),
        last_use_(function_.widths.size(), -1) {}

  Plan make() {
    const auto groups = group_ops(function_);
    for (size_t g = 0; g < groups.size(); ++g) {
      for (const Op* op : groups[g]) {
        for (ValueId id : op->in) {
          if (id >= 0) last_use_[id] = static_cast<int>(g);
        }
      }
    }
    last_use_[function_.output] = static_cast<int>(groups.size());
    add_inputs();
    for (size_t g = 0; g < groups.size(); ++g) add_group(groups[g], static_cast<int>(g));
    plan_.output = buffers_[function_.output];
    if (function_.input < 0) plan_.stages.push_back({.kind = StageKind::kStoreRows, .in = plan_.output});
    plan_.logits_stage = plan_.stages.size();
    if (function_.input >= 0) {
      while (plan_.stages[--plan_.logits_stage].kind != StageKind::kMultiply) {
      }
    }
    name_next_attends();
    return std::move(plan_);
  }

 private:
  void add_inputs() {
    if (function_.input >= 0) {
      buffers_[function_.input] = copied_.take(function_.widths[function_.input]);
      plan_.stages.push_back({.kind = StageKind::kLoadRows, .out = buffers_[function_.input]});
      return;
    }
    for (size_t i = 0; i < program_.ropes().size(); ++i) {
      plan_.rope_tables.push_back(copied_.take(2 * program_.ropes()[i].num_dims));
      plan_.stages.push_back(
          {.kind = StageKind::kRopeTable, .out = plan_.rope_tables[i], .spec = static_cast<int32_t>(i)});
    }
  }

  void name_next_attends() {
    std::vector<Stage>& stages = plan_.stages;
    for (size_t attend = 0, first = 0; attend < stages.size(); ++attend) {
      if (stages[attend].kind != StageKind::kAttend) continue;
      int32_t panels = 0;
      for (size_t i = first; i < attend; ++i) panels += stages[i].num_panels;
      for (size_t i = first; i < attend; ++i) {
        stages[i].next_attend = static_cast<int32_t>(attend);
        stages[i].fetch_panels = panels;
      }
      first = attend + 1;
    }
  }

  void add_group(const std::vector<const Op*>& group, int index) {
    const Op& op = *group.front();
    if (op.kind == OpKind::kLinear) {
      add_products(group);
      release(op, index);
    } else if (op.kind == OpKind::kAttention) {
      add_attention(op);
      release(op, index);
    } else if (op.kind == OpKind::kSoftcap && last_use_[op.in[0]] == index) {
      buffers_[op.out] = buffers_[op.in[0]];
      add_elementwise(op, buffers_[op.out], {});
    } else {
      // Elementwise: the output may take over an input that ends here.
      const Buffer in = op.in[0] >= 0 ? buffers_[op.in[0]] : Buffer{};
      const Buffer in2 = op.in[1] >= 0 ? buffers_[op.in[1]] : Buffer{};
      release(op, index);
      buffers_[op.out] = copied_.take(function_.widths[op.out]);
      add_elementwise(op, in, in2);
    }
    for (const Op* each : group) {
      if (last_use_[each->out] < 0) give(buffers_[each->out]);  // nobody reads it
    }
  }

  void release(const Op& op, int index) {
    for (int i = 0; i < 3; ++i) {
      const ValueId id = op.in[i];
      const bool is_repeated = (i > 0 && id == op.in[0]) || (i > 1 && id == op.in[1]);
      if (id >= 0 && !is_repeated && last_use_[id] == index) give(buffers_[id]);
    }
  }

  // Threads are at most one multiply or attend stage apart: what token stages read of the shared area is free for the
  // one after the next.
  void give(const Buffer& buffer) {
    if (buffer.is_copied) {
      copied_.give(buffer);
    } else {
      pending_.push_back(buffer);
    }
  }
  void free_pending() {
    for (const Buffer& buffer : pending_) shared_.give(buffer);
    pending_.clear();
  }

  void add_products(const std::vector<const Op*>& group) {
    Stage stage{.kind = StageKind::kMultiply, .in = buffers_[group.front()->in[0]]};
    bool is_quantized = false;
    for (const Op* op : group) {
      const PackedMatrix& matrix = weights_.matrix(op->matrix);
      is_quantized |= !is_float_format(matrix.format);
      buffers_[op->out] = shared_.take(matrix.rows);
      stage.products.push_back(
          {&matrix, op->vector >= 0 ? weights_.vector(op->vector).data : nullptr, buffers_[op->out]});
      stage.num_panels += matrix.num_panels;
      stage.num_bytes += matrix.num_panels * matrix.panel_bytes;
    }
    if (is_quantized) {
      plan_.max_quantized_cols = std::max(plan_.max_quantized_cols, stage.in.width);
      plan_.stages.push_back({.kind = StageKind::kQuantize, .in = stage.in});
    }
    free_pending();
    plan_.stages.push_back(std::move(stage));
  }

  void add_attention(const Op& op) {
    plan_.stages.push_back(
        {.kind = StageKind::kWriteKv, .in = buffers_[op.in[1]], .in2 = buffers_[op.in[2]], .spec = op.spec});
    buffers_[op.out] = shared_.take(function_.widths[op.out]);
    free_pending();
    plan_.stages.push_back(
        {.kind = StageKind::kAttend, .in = buffers_[op.in[0]], .out = buffers_[op.out], .spec = op.spec});
  }

  void add_elementwise(const Op& op, const Buffer& in, const Buffer& in2) {
    Stage stage{.kind = StageKind::kAdd, .in = in, .in2 = in2, .out = buffers_[op.out], .spec = op.spec};
    stage.number = op.number;
    stage.activation = op.activation;
    switch (op.kind) {
      case OpKind::kEmbed:
        stage.kind = StageKind::kEmbed;
        stage.table = &weights_.matrix(op.matrix);
        break;
      case OpKind::kRmsNorm:
        stage.kind = StageKind::kRmsNorm;
        stage.weight = weights_.vector(op.vector).data;
        stage.group_size = weights_.vector(op.vector).size;
        break;
      case OpKind::kRope:
        stage.kind = StageKind::kRope;
        stage.in2 = plan_.rope_tables[op.spec];
        break;
      case OpKind::kGated:
        stage.kind = StageKind::kGated;
        break;
      case OpKind::kSoftcap:
        stage.kind = StageKind::kSoftcap;
        break;
      case OpKind::kAdd:
      case OpKind::kLinear:
      case OpKind::kAttention:
        break;
    }
    plan_.stages.push_back(std::move(stage));
  }

  const Program& program_;
  const WeightStore& weights_;
  const Function& function_;
  Plan plan_;
  BufferPool shared_, copied_;
  std::vector<Buffer> pending_;  // shared buffers that a slower thread may still read
  std::vector<Buffer> buffers_;  // by value id
  std::vector<int> last_use_;    // index of the last group that reads a value; -1: none
};

}  // namespace

int32_t panel_at(const Stage& stage, double fraction) {
  double bytes = fraction * static_cast<double>(stage.num_bytes);
  int32_t before = 0;
  for (const Product& p : stage.products) {
    const double in_product = bytes / static_cast<double>(p.matrix->panel_bytes);
    if (in_product < p.matrix->num_panels) return before + static_cast<int32_t>(std::lround(in_product));
    bytes -= static_cast<double>(p.matrix->num_panels * p.matrix->panel_bytes);
    before += p.matrix->num_panels;
  }
  return before;
}

Plan make_plan(const Program& program, const WeightStore& weights, bool is_head) {
  return Planner(program, weights, is_head).make();
}

}  // namespace octavo
