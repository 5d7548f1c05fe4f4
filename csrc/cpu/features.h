// What the processor can do and the operating system saves.
#pragma once

#include <cstdint>

namespace octavo {

enum Feature : uint32_t {
  kAvx2 = 1u << 0,
  kFma = 1u << 1,
  kF16c = 1u << 2,
  kAvx512F = 1u << 3,
  kAvx512Bw = 1u << 4,
  kAvx512Vl = 1u << 5,
  kAvx512Dq = 1u << 6,
  kAvx512Vnni = 1u << 7,
};

using Features = uint32_t;  // a set of Feature bits

// Asks CPUID, and XGETBV whether the registers survive a context switch.
Features probe_features();

constexpr bool is_subset(Features needs, Features available) { return (needs & ~available) == 0; }

}  // namespace octavo
