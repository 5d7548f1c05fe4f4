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
  kAvx512Bf16 = 1u << 8,
};

using Features = uint32_t;  // a set of Feature bits

struct FeatureName {
  Feature bit;
  const char* name;  // as /proc/cpuinfo spells it
};
inline constexpr FeatureName kFeatureNames[] = {
    {kAvx2, "avx2"},         {kFma, "fma"},           {kF16c, "f16c"},
    {kAvx512F, "avx512f"},   {kAvx512Bw, "avx512bw"}, {kAvx512Vl, "avx512vl"},
    {kAvx512Dq, "avx512dq"}, {kAvx512Vnni, "avx512_vnni"}, {kAvx512Bf16, "avx512_bf16"},
};

// Asks CPUID, and XGETBV whether the registers survive a context switch.
Features probe_features();

constexpr bool is_subset(Features needs, Features available) { return (needs & ~available) == 0; }

}  // namespace octavo
