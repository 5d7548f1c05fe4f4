// Memory straight from the system: zeroed, untouched until used, given back at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/status.h"

namespace octavo {

inline constexpr size_t kCacheLine = 64;
inline constexpr size_t kHugePage = size_t{2} << 20;

constexpr size_t round_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// One mapping, anonymous unless told otherwise. Large ones start on a huge page and ask for huge pages.
class Mapping {
 public:
  Mapping() = default;
  ~Mapping() { reset(); }
  Mapping(Mapping&& other) noexcept { swap(other); }
  Mapping& operator=(Mapping&& other) noexcept {
    swap(other);
    return *this;
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  static Status create(size_t bytes, Mapping* out);
  // A read-only view of an open file instead; `offset` is a multiple of the page size. The file may be closed then.
  static Status map_file(int fd, uint64_t offset, size_t bytes, Mapping* out);
  void reset();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void swap(Mapping& other) noexcept;

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  void* base_ = nullptr;
  size_t base_size_ = 0;
};

// Allocates by moving a pointer; frees everything together. For weights.
class Arena {
 public:
  // Cache-line aligned.
  Status allocate(size_t bytes, std::byte** out);
  size_t used_bytes() const { return used_bytes_; }

 private:
  std::vector<Mapping> chunks_;
  size_t offset_ = 0;  // in the last chunk
  size_t used_bytes_ = 0;
};

}  // namespace octavo
