// What cannot be a program is refused while it is recorded; plans share inputs and never let live buffers overlap.
#include <set>

#include "core/plan.h"
#include "model.h"

using namespace octavo_test;

namespace {

bool fails(const Status& status, const char* part) {
  return status.code() == StatusCode::kInvalid && status.message().find(part) != std::string::npos;
}

void test_refusals(Runtime& runtime) {
  const int32_t square = random_matrix(runtime, kHidden, kHidden, 1), narrow = random_matrix(runtime, 8, kHidden, 2);
  const int32_t norm = constant_vector(runtime, kHidden, 1.0f), odd = constant_vector(runtime, 48, 1.0f);
  Program p(runtime.weights);
  ValueId x = -1, y = -1, z = -1;
  CHECK(fails(p.linear(0, square, -1, &y), "does not exist"));
  CHECK(fails(p.embed(99, 1.0f, &x), "no such weight"));
  CHECK(p.embed(square, 1.0f, &x).ok());
  CHECK(fails(p.linear(x, 99, -1, &y), "no such weight"));
  CHECK(fails(p.linear(x, square, 99, &y), "bias"));
  CHECK(fails(p.linear(x, square, odd, &y), "bias"));
  CHECK(p.linear(x, narrow, -1, &y).ok());
  CHECK(fails(p.linear(y, square, -1, &z), "8 channels"));
  CHECK(fails(p.add(x, y, &z), "widths differ"));
  CHECK(fails(p.gated(x, y, Activation::kSilu, &z), "widths differ"));
  CHECK(fails(p.rms_norm(x, odd, 1e-6f, &z), "groups of 48"));
  CHECK(fails(p.rms_norm(x, 99, 1e-6f, &z), "no such vector"));
  CHECK(fails(p.softcap(x, 0.0f, &z), "cap"));
  CHECK(fails(p.rope(y, rope_spec(), &z), "rope"));
  RopeSpec wide = rope_spec();
  wide.num_dims = 32;
  CHECK(fails(p.rope(x, wide, &z), "rope"));
  const AttentionShape shape{4, 2, 16, 1.0f, 0, 0.0f};
  CHECK(fails(p.attention(x, x, x, {0, shape}, &z), "q, k, v"));
  CHECK(fails(p.attention(x, x, x, {-1, shape}, &z), "layer -1"));
  CHECK(fails(p.attention(x, x, x, {0, {4, 3, 16, 1.0f, 0, 0.0f}}, &z), "3 kv heads"));
  CHECK(p.attention(x, x, x, {0, {1, 1, 4096, 1.0f, 0, 0.0f}}, &z).code() == StatusCode::kModel);
  CHECK(fails(p.end_head(x), "body has not ended"));
  CHECK(p.end_body(x, &x).ok());
  CHECK(fails(p.embed(square, 1.0f, &y), "only the body"));
  CHECK(fails(p.rope(x, rope_spec(), &y), "only the body"));
  CHECK(fails(p.linear(7, square, -1, &y), "does not exist"));
  CHECK(p.rms_norm(x, norm, 1e-6f, &y).ok());
  CHECK(fails(p.end_head(y), "ends with a linear"));
  CHECK(p.linear(y, square, -1, &y).ok());
  CHECK(p.softcap(y, 30.0f, &z).ok());
  CHECK(fails(p.end_head(y), "ends with a linear"));  // the softcap comes after it
  CHECK(p.end_head(z).ok());
  CHECK(fails(p.add(y, y, &z), "complete"));
  Program twice(runtime.weights);
  CHECK(twice.embed(square, 1.0f, &x).ok() && twice.end_body(x, &x).ok());
  CHECK(twice.linear(x, narrow, -1, &y).ok() && twice.linear(x, square, -1, &z).ok());
  CHECK(fails(twice.end_head(z), "another linear"));
}

// The floats a stage writes and reads, as buffer offsets.
std::vector<Buffer> outputs(const Stage& stage) {
  std::vector<Buffer> buffers;
  if (stage.kind == StageKind::kMultiply) {
    for (const Product& p : stage.products) buffers.push_back(p.out);
  } else if (stage.out.stride != 0) {
    buffers.push_back(stage.out);
  }
  return buffers;
}

// Offsets and strides are per token of an area: for any number of tokens.
bool overlap(const Buffer& a, const Buffer& b) {
  return a.is_copied == b.is_copied && a.offset < b.offset + b.stride && b.offset < a.offset + a.stride;
}

void test_plan(Runtime& runtime) {
  Program program(runtime.weights);
  record_model(runtime, program);
  CHECK(program.num_token_ids() == kVocab && program.vocab_size() == kVocab && program.hidden_size() == kHidden);
  const Plan plan = make_plan(program, runtime.weights, false);
  int num_multiplies = 0;
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const Stage& stage = plan.stages[i];
    num_multiplies += stage.kind == StageKind::kMultiply;
    // Buffers of unequal strides never share memory: rows of different tokens would overlap.
    for (const Buffer& out : outputs(stage)) {
      CHECK(out.offset + out.stride <= (out.is_copied ? plan.copied_floats : plan.shared_floats));
      CHECK(out.is_copied == is_token_stage(stage.kind));
      for (const Stage& other : plan.stages) {
        for (const Buffer& b : outputs(other)) CHECK(b.stride == out.stride || !overlap(b, out));
      }
      // Products read their input while others still read it: never in place.
      if (stage.kind == StageKind::kMultiply || stage.kind == StageKind::kAttend) {
        CHECK(!overlap(stage.in, out));
      }
    }
    for (size_t a = 0; a < stage.products.size(); ++a) {
      for (size_t b = 0; b < a; ++b) CHECK(!overlap(stage.products[a].out, stage.products[b].out));
    }
  }
  // What a token stage reads of the shared area is not written by the next multiply or attend stage: a thread that is
  // slower may still read it.
  const auto next_shared = [&](size_t i) {
    while (++i < plan.stages.size() && is_token_stage(plan.stages[i].kind)) {
    }
    return i;
  };
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const Stage& stage = plan.stages[i];
    const size_t next = next_shared(i);
    if (!is_token_stage(stage.kind) || next == plan.stages.size()) continue;
    for (const Buffer& in : {stage.in, stage.in2}) {
      if (in.stride == 0 || in.is_copied) continue;
      for (const Buffer& out : outputs(plan.stages[next])) CHECK(!overlap(in, out));
    }
  }
  CHECK(num_multiplies == 8);  // q k v, o, gate up, down; two layers
  // Far less than one buffer per value.
  CHECK(plan.shared_floats + plan.copied_floats < program.body().widths.size() * 64);
  for (const Stage& stage : plan.stages) {
    if (stage.kind != StageKind::kMultiply) continue;
    int32_t panels = 0;
    for (const Product& p : stage.products) panels += p.matrix->num_panels;
    CHECK(stage.num_panels == panels);
    CHECK(panel_at(stage, 0.0) == 0 && panel_at(stage, 1.0) == panels);
    CHECK(panel_at(stage, 0.5) > 0 && panel_at(stage, 0.5) < panels);
    for (int i = 0; i < 100; ++i) CHECK(panel_at(stage, 0.01 * i) <= panel_at(stage, 0.01 * (i + 1)));
  }
}

}  // namespace

int main() {
  Runtime runtime(1, choose_table("scalar", 0));
  test_refusals(runtime);
  test_plan(runtime);
  return octavo_test::check_result();
}
