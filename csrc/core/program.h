// What a model computes in a step, recorded once: two functions over symbolic numbers of tokens and of output rows.
//
//   body  num_tokens -> hidden [num_tokens, hidden_size]
//   head  hidden rows [num_rows, hidden_size] -> logits [num_rows, vocab_size]
//
// Each call checks its arguments; what is in a Program is valid.
#pragma once

#include <cstdint>
#include <vector>

#include "core/status.h"
#include "core/weight_store.h"
#include "kernels/step_table.h"

namespace octavo {

using ValueId = int32_t;

struct RopeSpec {
  int32_t head_dim;
  int32_t num_dims;
  RopeOrder order;
  // Radians per position of each pair [num_dims / 2].
  std::vector<double> frequencies;
  bool operator==(const RopeSpec&) const = default;
};

enum class OpKind : int32_t { kEmbed, kLinear, kRmsNorm, kRope, kAttention, kGated, kAdd, kSoftcap };

struct Op {
  OpKind kind;
  ValueId out = -1;
  ValueId in[3] = {-1, -1, -1};
  int32_t matrix = -1;  // kEmbed, kLinear
  int32_t vector = -1;  // kLinear: bias or -1; kRmsNorm: weight
  int32_t spec = -1;    // kRope, kAttention: index of the program's spec
  float number = 0.0f;  // kEmbed: scale; kRmsNorm: eps; kSoftcap: cap
  Activation activation = Activation::kSilu;
};

struct AttentionSpec {
  int32_t layer;
  AttentionShape shape;
};

struct Function {
  std::vector<Op> ops;
  std::vector<int32_t> widths;  // by value id
  ValueId input = -1;           // head only
  ValueId output = -1;
};

class Program {
 public:
  explicit Program(const WeightStore& weights) : weights_(weights) {}

  Status embed(int32_t matrix, float scale, ValueId* out);
  Status linear(ValueId x, int32_t matrix, int32_t bias, ValueId* out);  // bias -1: none
  Status rms_norm(ValueId x, int32_t weight, float eps, ValueId* out);
  Status rope(ValueId x, const RopeSpec& spec, ValueId* out);
  Status attention(ValueId q, ValueId k, ValueId v, const AttentionSpec& spec, ValueId* out);
  Status gated(ValueId gate, ValueId up, Activation activation, ValueId* out);
  Status add(ValueId a, ValueId b, ValueId* out);
  Status softcap(ValueId x, float cap, ValueId* out);

  // Ends the body; what follows is the head, which starts from the returned rows.
  Status end_body(ValueId hidden, ValueId* rows);
  // The logits come from one linear, or from the softcap of one.
  Status end_head(ValueId logits);

  bool is_complete() const { return head_.output >= 0; }
  const Function& body() const { return body_; }
  const Function& head() const { return head_; }
  const std::vector<RopeSpec>& ropes() const { return ropes_; }
  const std::vector<AttentionSpec>& attentions() const { return attentions_; }
  // Rows of the smallest embedding table: token ids below it are valid.
  int32_t num_token_ids() const { return num_token_ids_; }
  int32_t hidden_size() const { return body_.widths[body_.output]; }
  int32_t vocab_size() const { return head_.widths[head_.output]; }

 private:
  Function& current() { return body_.output < 0 ? body_ : head_; }
  bool is_body() const { return body_.output < 0; }
  Status check_value(ValueId id, const char* what);
  int32_t width(ValueId id) { return current().widths[id]; }
  ValueId append(Op op, int32_t width);

  const WeightStore& weights_;
  Function body_, head_;
  std::vector<RopeSpec> ropes_;
  std::vector<AttentionSpec> attentions_;
  int32_t num_token_ids_ = 0;
};

}  // namespace octavo
