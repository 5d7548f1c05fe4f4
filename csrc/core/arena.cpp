#include "core/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace octavo {
namespace {

constexpr size_t kChunkBytes = size_t{64} << 20;  // reserved, not touched: what is not used costs nothing

}  // namespace

Status Mapping::create(size_t bytes, Mapping* out) {
  out->reset();
  if (bytes == 0) return {};
  const bool is_large = bytes >= kHugePage;
  const size_t base_size = is_large ? bytes + kHugePage : bytes;
  void* base = base_size < bytes ? MAP_FAILED
                                 : mmap(nullptr, base_size, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return Status::capacity("the system gave no " + std::to_string(bytes) + " bytes of memory");
  out->base_ = base;
  out->base_size_ = base_size;
  out->data_ = static_cast<std::byte*>(base);
  out->size_ = bytes;
  if (is_large) {
    const size_t address = reinterpret_cast<uintptr_t>(base);
    out->data_ += round_up(address, kHugePage) - address;
#if defined(MADV_HUGEPAGE)
    madvise(out->data_, bytes, MADV_HUGEPAGE);  // advice only: 4 KiB pages work too, slower
#endif
  }
  return {};
}

Status Mapping::map_file(int fd, uint64_t offset, size_t bytes, Mapping* out) {
  out->reset();
  void* base = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (base == MAP_FAILED) return Status::capacity("the system mapped no " + std::to_string(bytes) + " bytes of a file");
  out->base_ = base;
  out->data_ = static_cast<std::byte*>(base);
  out->size_ = out->base_size_ = bytes;
  return {};
}

void Mapping::reset() {
  if (base_ != nullptr) munmap(base_, base_size_);
  base_ = nullptr;
  data_ = nullptr;
  size_ = base_size_ = 0;
}

void Mapping::swap(Mapping& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(base_, other.base_);
  std::swap(base_size_, other.base_size_);
}

Status Arena::allocate(size_t bytes, std::byte** out) {
  bytes = round_up(std::max<size_t>(bytes, 1), kCacheLine);
  if (chunks_.empty() || chunks_.back().size() - offset_ < bytes) {
    Mapping chunk;
    if (Status status = Mapping::create(std::max(bytes, kChunkBytes), &chunk); !status.ok()) return status;
    chunks_.push_back(std::move(chunk));
    offset_ = 0;
  }
  *out = chunks_.back().data() + offset_;
  offset_ += bytes;
  used_bytes_ += bytes;
  return {};
}

}  // namespace octavo
