// A recorded function turned into what the threads execute: stages over buffers of a workspace.
//
// Token stages work on each token by itself. A multiply stage computes panels of output rows, an attend stage query
// tiles and kv heads. Who computes what is the executor's choice; so is whether threads keep copies of what token stages
// write.
#pragma once

#include <cstdint>
#include <vector>

#include "core/program.h"
#include "kernels/linear_table.h"

namespace octavo {

enum class StageKind : int32_t {
  // shared by tokens
  kRopeTable,
  kLoadRows,
  kEmbed,
  kRmsNorm,
  kRope,
  kGated,
  kAdd,
  kSoftcap,
  kQuantize,
  kWriteKv,
  kStoreRows,
  // shared otherwise
  kMultiply,
  kAttend,
};

constexpr bool is_token_stage(StageKind kind) { return kind < StageKind::kMultiply; }

// Rows of one value in an area for `n` tokens: token t at area + n * offset + t * stride (floats). What token stages
// write may lie in an area of each thread's own.
struct Buffer {
  size_t offset = 0;
  size_t stride = 0;
  int32_t width = 0;
  bool is_copied = false;
};

// One matrix of a multiply stage.
struct Product {
  const PackedMatrix* matrix;
  const float* bias;  // or null
  Buffer out;
};

struct Stage {
  StageKind kind;
  Buffer in{}, in2{}, out{};
  const PackedMatrix* table = nullptr;  // kEmbed
  const float* weight = nullptr;        // kRmsNorm
  int32_t group_size = 0;               // kRmsNorm
  int32_t spec = -1;                    // kRope, kRopeTable, kWriteKv, kAttend
  float number = 0.0f;
  Activation activation = Activation::kSilu;
  std::vector<Product> products{};  // kMultiply: all read `in`, quantised once
  int32_t num_panels = 0;           // kMultiply: of all products
  size_t num_bytes = 0;             // kMultiply: of all panels
  // kMultiply: the stage of the next kAttend, whose memory is fetched meanwhile, and the panels of all multiply stages
  // that come before it and after the last one. -1: none.
  int32_t next_attend = -1;
  int32_t fetch_panels = 0;
};

struct Plan {
  std::vector<Stage> stages;
  Buffer output;
  // kMultiply of the logits, whose stages after it work on each logit by itself. Of a body: all stages come before.
  size_t logits_stage = 0;
  // Floats per token of the area that all threads share, and of the one that each may have for itself.
  size_t shared_floats = 0, copied_floats = 0;
  int32_t max_quantized_cols = 0;
  std::vector<Buffer> rope_tables;  // by rope spec: cos [num_dims], then sin [num_dims]
};

// The panel, in the row of all products of a multiply stage, before which this fraction of their bytes lies.
int32_t panel_at(const Stage& stage, double fraction);

// `is_head`: reads kept rows instead of tokens.
Plan make_plan(const Program& program, const WeightStore& weights, bool is_head);

}  // namespace octavo
