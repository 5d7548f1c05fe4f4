#include "core/kv_pool.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "formats/bf16.h"
#include "formats/f16.h"

namespace octavo {
Status KVPool::create(const KVShape& shape, int32_t num_blocks, KVPool* out) {
  if (shape.num_layers <= 0 || shape.num_kv_heads <= 0 || shape.head_dim <= 0 || num_blocks <= 0) {
    return Status::invalid("a KV pool of " + std::to_string(num_blocks) + " blocks, " +
                           std::to_string(shape.num_layers) + " layers, " + std::to_string(shape.num_kv_heads) +
                           " heads of " + std::to_string(shape.head_dim));
  }
  if (num_blocks > INT32_MAX / kBlockSize) return Status::invalid("more KV slots than a 32-bit id can name");
  out->shape_ = shape;
  out->num_blocks_ = num_blocks;
  return Mapping::create(num_blocks * shape.block_bytes(), &out->memory_);
}

Status KVPool::copy(std::span<const std::pair<int32_t, int32_t>> pairs) {
  for (const auto& [source, destination] : pairs) {
    if (source < 0 || source >= num_blocks_ || destination < 0 || destination >= num_blocks_) {
      return Status::invalid("copy of block " + std::to_string(source) + " to " + std::to_string(destination) +
                             ": there are " + std::to_string(num_blocks_) + " blocks");
    }
  }
  const size_t size = shape_.block_bytes();
  for (const auto& [source, destination] : pairs) {
    std::memmove(memory_.data() + destination * size, memory_.data() + source * size, size);
  }
  return {};
}

Status KVPool::block(int32_t id, std::span<std::byte>* out) const {
  if (id < 0 || id >= num_blocks_) {
    return Status::invalid("block " + std::to_string(id) + ": there are " + std::to_string(num_blocks_) + " blocks");
  }
  const size_t size = shape_.block_bytes();
  *out = {memory_.data() + id * size, size};
  return {};
}

void KVPool::fill(float value) {
  if (shape_.type == KVType::F32) {
    std::fill_n(memory_.as<float>(), memory_.size() / sizeof(float), value);
  } else {
    const uint16_t half = shape_.type == KVType::BF16 ? f32_to_bf16(value).bits : f32_to_f16(value);
    std::fill_n(memory_.as<uint16_t>(), memory_.size() / sizeof(uint16_t), half);
  }
}

}  // namespace octavo
