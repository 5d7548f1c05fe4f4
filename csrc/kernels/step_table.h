// All kernels of a step but the matrix products, for one ISA. Included by ISA translation units: <cstddef>, <cstdint>
// and our own headers only.
//
// Row invariance: what a kernel writes for a token depends on this token's inputs alone, never on how many tokens,
// rows or tiles a call covers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_format.h"

namespace octavo {

inline constexpr int32_t kContextTile = 128;      // positions per attention partial, from position 0
inline constexpr int32_t kMaxHeadDim = 1024;
inline constexpr int32_t kVocabSlice = 4096;      // ids per partial of vocabulary-wide sums
inline constexpr int32_t kPartialHeader = 16;     // floats before the accumulator of a partial: [0] max, [1] sum

enum class Activation : int32_t { kSilu, kGeluTanh };
enum class RopeOrder : int32_t { kNeox, kAdjacent };

// One layer of the KV pool. A block holds, at `layer_offset`, per kv head { K [head_dim][16] | V [16][head_dim] },
// each with its factors: see kv_format.h.
struct KVLayer {
  std::byte* pool;
  size_t block_bytes;
  size_t layer_offset;
  int32_t num_kv_heads;
  int32_t head_dim;
  KVType type;
};

struct AttentionShape {
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  float scale;
  int32_t window;  // 0: none
  float softcap;   // 0: none
};

// Consecutive tokens of one sequence. Query row r is token r / group, query head r % group of the kv head.
struct QueryTile {
  const float* q;  // the first token's first head
  size_t q_stride;
  int32_t num_tokens;
  int32_t first_position;
  const int32_t* block_table;
};

// The blocks whose keys will be read next, to be fetched meanwhile: those of a context tile of one kv head.
struct KeysAhead {
  const int32_t* blocks = nullptr;
  int32_t num_blocks = 0;
  int32_t kv_head = 0;
};

// Keys and values [num_kv_heads * head_dim] of consecutive tokens.
struct KVRows {
  const float* keys;
  size_t key_stride;
  const float* values;
  size_t value_stride;
};

// Floats of one row's partial or state: max, sum, and the accumulator padded to whole registers.
constexpr size_t partial_floats(int32_t head_dim) {
  return kPartialHeader + (static_cast<size_t>(head_dim) + 15) / 16 * 16;
}

struct StepKernels {
  // out[g] = x[g] / sqrt(mean(x[g]^2) + eps) * weight for each group of `size` channels. May run in place.
  void (*rms_norm)(const float* x, const float* weight, int32_t num_groups, int32_t size, float eps, float* out);

  // Rotates each head. cos and sin are [num_dims], one entry per channel; sin is negative for the first of a pair.
  void (*rope)(const float* x, const float* cos, const float* sin, RopeOrder order, int32_t num_heads, int32_t head_dim,
               int32_t num_dims, float* out);

  void (*gated)(Activation activation, const float* gate, const float* up, int32_t size, float* out);
  void (*add)(const float* a, const float* b, int32_t size, float* out);
  void (*softcap)(const float* x, float cap, int32_t size, float* out);

  // Stores keys and values of tokens, each rounded to nearest even, at its slot. The same bytes from every table.
  void (*write_kv)(const KVLayer& layer, const KVRows& rows, const int32_t* slots, int32_t num_tokens);

  // Attention of all rows of `tile` over context tile `context` (positions 128 * context ..) of one kv head.
  // partials: partial_floats per row, scratch: 128 floats per row. A row that sees nothing here gets sum 0.
  void (*attend)(const KVLayer& layer, const AttentionShape& shape, const QueryTile& tile, int32_t kv_head,
                 int32_t context, const KeysAhead& ahead, float* partials, float* scratch);
  // Merges partials into states (both num_rows rows); called in rising order of context tiles.
  void (*merge)(const float* partials, int32_t num_rows, int32_t head_dim, float* states);
  // out = accumulator / sum of one row.
  void (*finish)(const float* state, int32_t head_dim, float* out);

  // The greatest number; -inf if there is none.
  float (*greatest)(const float* x, int32_t size);
  // Index of the first element equal to `value`, -1 if there is none.
  int32_t (*find)(const float* x, int32_t size, float value);
  // out[i] = exp((x[i] - max) / temperature), 0 where that is no number; returns the sum. `out` may be null.
  float (*exp_sum)(const float* x, int32_t size, float max, float temperature, float* out);
  int32_t (*count_greater)(const float* x, int32_t size, float bound);
  // Writes the indices of x[i] > bound in rising order; returns how many.
  int32_t (*collect_greater)(const float* x, int32_t size, float bound, int32_t* indices);
};

namespace scalar {
extern const StepKernels step_kernels;
}
namespace avx2 {
extern const StepKernels step_kernels;
}
namespace avx512 {
extern const StepKernels step_kernels;
}
namespace avx512_vnni {
extern const StepKernels step_kernels;
}

}  // namespace octavo
