// Packed weights from a file into memory: read by all threads, each block checked on its way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/arena.h"
#include "core/status.h"
#include "core/thread_pool.h"

namespace octavo {

// What one thread reads at a time, and what has one checksum: it is still in the cache when it is checked.
inline constexpr size_t kFileBlock = size_t{1} << 20;

constexpr size_t num_file_blocks(size_t bytes) { return bytes / kFileBlock + (bytes % kFileBlock != 0); }

// Of a block's bytes, a multiple of 8; docs/design/build-file.md has the definition. Guards against accidents, not
// against an attacker: one changed byte always changes it, other changes escape once in 2^64.
uint64_t block_checksum(std::span<const std::byte> block);

// The checksums of all blocks of `data`, one after the other; out has num_file_blocks(data.size()) places.
void checksum_blocks(std::span<const std::byte> data, ThreadPool& pool, std::span<uint64_t> out);

// A part of an open file: `bytes` from byte `offset` on, and a checksum for each block of it.
struct FilePart {
  int fd;
  uint64_t offset;
  uint64_t bytes;  // a multiple of 64
  std::span<const uint64_t> checksums;
};

// Reads the part into new memory on huge pages. kInvalid if it cannot be read in full or a checksum is wrong.
Status read_part(const FilePart& part, ThreadPool& pool, Mapping* out);

// Maps the part instead, unchecked: for weights larger than the memory. `offset` is a multiple of the page size.
Status map_part(const FilePart& part, Mapping* out);

}  // namespace octavo
