// The memory of the KV cache: blocks of octavo.kv_layout.KVLayout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "core/arena.h"
#include "kernels/step_table.h"

namespace octavo {

struct KVShape {
  int32_t num_layers, num_kv_heads, head_dim;
  KVType type;

  size_t layer_bytes() const { return kv_layer_bytes(type, num_kv_heads, head_dim); }
  size_t block_bytes() const { return num_layers * layer_bytes(); }
};

class KVPool {
 public:
  // Memory is reserved here and touched on first use.
  static Status create(const KVShape& shape, int32_t num_blocks, KVPool* out);

  KVLayer layer(int32_t index) const {
    return {memory_.data(),      shape_.block_bytes(), index * shape_.layer_bytes(),
            shape_.num_kv_heads, shape_.head_dim,      shape_.type};
  }
  const KVShape& shape() const { return shape_; }
  int32_t num_blocks() const { return num_blocks_; }

  // Copies whole blocks (source, destination), in order.
  Status copy(std::span<const std::pair<int32_t, int32_t>> pairs);
  // Overwrites everything with this number: channels of a float type, factors of a quantised one (codes then hold
  // anything). NaN makes whatever is read stale come out as NaN.
  void fill(float value);
  // The bytes of one block. Any thread may use those of a block that no step touches meanwhile.
  Status block(int32_t id, std::span<std::byte>* out) const;

 private:
  KVShape shape_{};
  int32_t num_blocks_ = 0;
  Mapping memory_;
};

}  // namespace octavo
