// The most that an ISA's instructions can do on this CPU: loops that only read, or only multiply and add in registers.
// Their rates are what the kernels are measured against. Included by ISA translation units: <cstddef>, <cstdint> and our
// own headers only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/features.h"

namespace octavo {

// read() takes whole multiples of this, in bytes, at addresses that are multiples of 64.
inline constexpr size_t kReadStep = 512;

struct PeakLoop {
  const char* instructions = nullptr;  // what the loop repeats
  int64_t macs_per_round = 0;
  void (*run)(int64_t rounds) = nullptr;  // null: the ISA has no such instruction
  Features needs = 0;                     // beyond those of the table
};

struct PeakKernels {
  // Reads every byte once, in order. Returns a value that depends on all of them.
  uint64_t (*read)(const std::byte* data, size_t bytes);
  PeakLoop int8;  // int8 products, int32 sums: as the quantised matrix kernels of the table multiply
  PeakLoop bf16;
  PeakLoop f32;
};

namespace scalar {
extern const PeakKernels peak_kernels;
}
namespace avx2 {
extern const PeakKernels peak_kernels;
}
namespace avx512 {
extern const PeakKernels peak_kernels;
}
namespace avx512_vnni {
extern const PeakKernels peak_kernels;
}

}  // namespace octavo
