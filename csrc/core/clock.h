// A monotonic clock in nanoseconds.
#pragma once

#include <chrono>
#include <cstdint>

namespace octavo {

inline int64_t now_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace octavo
