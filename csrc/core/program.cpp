#include "core/program.h"

#include <algorithm>
#include <cmath>

namespace octavo {
namespace {

std::string number(int64_t n) { return std::to_string(n); }

Status check_attention(const AttentionSpec& spec) {
  const AttentionShape& shape = spec.shape;
  if (spec.layer < 0 || shape.num_heads <= 0 || shape.num_kv_heads <= 0 || shape.num_heads % shape.num_kv_heads != 0) {
    return Status::invalid("attention: layer " + number(spec.layer) + ", " + number(shape.num_heads) + " heads over " +
                           number(shape.num_kv_heads) + " kv heads");
  }
  if (shape.head_dim <= 0 || shape.head_dim > kMaxHeadDim) {
    return Status::model("attention: head_dim " + number(shape.head_dim) + " is not in 1 .. " + number(kMaxHeadDim));
  }
  if (shape.window < 0 || shape.softcap < 0.0f) return Status::invalid("attention: negative window or softcap");
  return {};
}

}  // namespace

Status Program::check_value(ValueId id, const char* what) {
  if (is_complete()) return Status::invalid("the program is complete");
  if (id < 0 || id >= static_cast<ValueId>(current().widths.size())) {
    return Status::invalid(std::string(what) + ": value " + number(id) + " does not exist in this function");
  }
  return {};
}

ValueId Program::append(Op op, int32_t width) {
  Function& function = current();
  op.out = static_cast<ValueId>(function.widths.size());
  function.widths.push_back(width);
  function.ops.push_back(op);
  return op.out;
}

Status Program::embed(int32_t matrix, float scale, ValueId* out) {
  if (!is_body()) return Status::invalid("embed: only the body has tokens");
  if (matrix < 0 || matrix >= weights_.num_matrices()) return Status::invalid("embed: no such weight");
  const PackedMatrix& table = weights_.matrix(matrix);
  num_token_ids_ = num_token_ids_ == 0 ? table.rows : std::min(num_token_ids_, table.rows);
  *out = append({.kind = OpKind::kEmbed, .matrix = matrix, .number = scale}, table.cols);
  return {};
}

Status Program::linear(ValueId x, int32_t matrix, int32_t bias, ValueId* out) {
  if (Status status = check_value(x, "linear"); !status.ok()) return status;
  if (matrix < 0 || matrix >= weights_.num_matrices()) return Status::invalid("linear: no such weight");
  const PackedMatrix& weight = weights_.matrix(matrix);
  if (weight.cols != width(x)) {
    return Status::invalid("linear: input of " + number(width(x)) + " channels, weight [" + number(weight.rows) + ", " +
                           number(weight.cols) + "]");
  }
  if (bias >= weights_.num_vectors() || (bias >= 0 && weights_.vector(bias).size != weight.rows)) {
    return Status::invalid("linear: the bias does not have " + number(weight.rows) + " elements");
  }
  *out = append({.kind = OpKind::kLinear, .in = {x, -1, -1}, .matrix = matrix, .vector = bias}, weight.rows);
  return {};
}

Status Program::rms_norm(ValueId x, int32_t weight, float eps, ValueId* out) {
  if (Status status = check_value(x, "rms_norm"); !status.ok()) return status;
  if (weight < 0 || weight >= weights_.num_vectors()) return Status::invalid("rms_norm: no such vector");
  const int32_t size = weights_.vector(weight).size;
  if (size <= 0 || width(x) % size != 0) {
    return Status::invalid("rms_norm: " + number(width(x)) + " channels in groups of " + number(size));
  }
  *out = append({.kind = OpKind::kRmsNorm, .in = {x, -1, -1}, .vector = weight, .number = eps}, width(x));
  return {};
}

Status Program::rope(ValueId x, const RopeSpec& spec, ValueId* out) {
  if (Status status = check_value(x, "rope"); !status.ok()) return status;
  if (!is_body()) return Status::invalid("rope: only the body has positions");
  if (spec.head_dim <= 0 || width(x) % spec.head_dim != 0 || spec.num_dims <= 0 || spec.num_dims > spec.head_dim ||
      spec.num_dims % 2 != 0 || spec.frequencies.size() != static_cast<size_t>(spec.num_dims / 2)) {
    return Status::invalid("rope: " + number(spec.num_dims) + " of " + number(spec.head_dim) + " channels with " +
                           number(static_cast<int64_t>(spec.frequencies.size())) + " frequencies over width " +
                           number(width(x)));
  }
  auto found = std::find(ropes_.begin(), ropes_.end(), spec);
  const int32_t index = static_cast<int32_t>(found - ropes_.begin());
  if (found == ropes_.end()) ropes_.push_back(spec);
  *out = append({.kind = OpKind::kRope, .in = {x, -1, -1}, .spec = index}, width(x));
  return {};
}

Status Program::attention(ValueId q, ValueId k, ValueId v, const AttentionSpec& spec, ValueId* out) {
  for (ValueId id : {q, k, v}) {
    if (Status status = check_value(id, "attention"); !status.ok()) return status;
  }
  if (!is_body()) return Status::invalid("attention: only the body has a KV cache");
  if (Status status = check_attention(spec); !status.ok()) return status;
  const int64_t q_width = int64_t{spec.shape.num_heads} * spec.shape.head_dim;
  const int64_t kv_width = int64_t{spec.shape.num_kv_heads} * spec.shape.head_dim;
  if (width(q) != q_width || width(k) != kv_width || width(v) != kv_width) {
    return Status::invalid("attention: q, k, v of " + number(width(q)) + ", " + number(width(k)) + ", " +
                           number(width(v)) + " channels, needed " + number(q_width) + " and " + number(kv_width));
  }
  const int32_t index = static_cast<int32_t>(attentions_.size());
  attentions_.push_back(spec);
  *out = append({.kind = OpKind::kAttention, .in = {q, k, v}, .spec = index}, width(q));
  return {};
}

Status Program::gated(ValueId gate, ValueId up, Activation activation, ValueId* out) {
  for (ValueId id : {gate, up}) {
    if (Status status = check_value(id, "gated"); !status.ok()) return status;
  }
  if (width(gate) != width(up)) return Status::invalid("gated: widths differ");
  *out = append({.kind = OpKind::kGated, .in = {gate, up, -1}, .activation = activation}, width(gate));
  return {};
}

Status Program::add(ValueId a, ValueId b, ValueId* out) {
  for (ValueId id : {a, b}) {
    if (Status status = check_value(id, "add"); !status.ok()) return status;
  }
  if (width(a) != width(b)) return Status::invalid("add: widths differ");
  *out = append({.kind = OpKind::kAdd, .in = {a, b, -1}}, width(a));
  return {};
}

Status Program::softcap(ValueId x, float cap, ValueId* out) {
  if (Status status = check_value(x, "softcap"); !status.ok()) return status;
  if (!(cap > 0.0f) || !std::isfinite(cap)) return Status::invalid("softcap: the cap is not a positive number");
  *out = append({.kind = OpKind::kSoftcap, .in = {x, -1, -1}, .number = cap}, width(x));
  return {};
}

Status Program::end_body(ValueId hidden, ValueId* rows) {
  if (!is_body()) return Status::invalid("the body has ended already");
  if (Status status = check_value(hidden, "hidden"); !status.ok()) return status;
  body_.output = hidden;
  head_.widths.push_back(body_.widths[hidden]);
  *rows = head_.input = 0;
  return {};
}

Status Program::end_head(ValueId logits) {
  if (is_body()) return Status::invalid("the body has not ended");
  if (Status status = check_value(logits, "logits"); !status.ok()) return status;
  const std::vector<Op>& ops = head_.ops;
  size_t end = ops.size();
  ValueId product = logits;
  if (end > 0 && ops[end - 1].kind == OpKind::kSoftcap && ops[end - 1].out == logits) product = ops[--end].in[0];
  if (end == 0 || ops[end - 1].kind != OpKind::kLinear || ops[end - 1].out != product) {
    return Status::invalid("a head ends with a linear, or with the softcap of one");
  }
  // Linears of one input are one stage of a plan; that of the logits has no other.
  const ValueId input = ops[end - 1].in[0];
  const auto reads_it = [&](const Op& op) { return op.kind == OpKind::kLinear && op.in[0] == input; };
  if (std::count_if(ops.begin(), ops.end(), reads_it) > 1) {
    return Status::invalid("another linear of the head reads what the logits are made of");
  }
  head_.output = logits;
  return {};
}

}  // namespace octavo
