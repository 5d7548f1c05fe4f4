#include "cpu/features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace octavo {

#if defined(__x86_64__)
namespace {

struct Cpuid {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Cpuid cpuid(uint32_t leaf, uint32_t subleaf) {
  Cpuid r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

uint64_t saved_state() {
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

constexpr bool has(uint32_t word, int bit) { return (word >> bit) & 1; }

}  // namespace

Features probe_features() {
  // Bit numbers: Intel SDM volume 2A, CPUID leaves 1 and 7.
  const Cpuid basic = cpuid(1, 0), extended = cpuid(7, 0);
  if (!has(basic.ecx, 27)) return 0;  // OSXSAVE: without it XGETBV faults
  constexpr uint64_t kYmm = 0x6, kZmm = 0xe6;
  const uint64_t saved = saved_state();
  Features found = 0;
  if ((saved & kYmm) == kYmm) {
    if (has(extended.ebx, 5)) found |= kAvx2;
    if (has(basic.ecx, 12)) found |= kFma;
    if (has(basic.ecx, 29)) found |= kF16c;
  }
  if ((saved & kZmm) == kZmm) {
    if (has(extended.ebx, 16)) found |= kAvx512F;
    if (has(extended.ebx, 17)) found |= kAvx512Dq;
    if (has(extended.ebx, 30)) found |= kAvx512Bw;
    if (has(extended.ebx, 31)) found |= kAvx512Vl;
    if (has(extended.ecx, 11)) found |= kAvx512Vnni;
    if (extended.eax >= 1 && has(cpuid(7, 1).eax, 5)) found |= kAvx512Bf16;
  }
  return found;
}
#else
Features probe_features() { return 0; }
#endif

}  // namespace octavo
