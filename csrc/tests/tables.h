// The linear kernel tables this machine can run.
#pragma once

#include <vector>

#include "kernels/table.h"

namespace octavo_test {

struct NamedTable {
  const char* name;
  const octavo::LinearKernels* kernels;
};

inline std::vector<NamedTable> supported_tables() {
  std::vector<NamedTable> tables = {{"scalar", &octavo::scalar::linear_kernels}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    tables.push_back({"avx2", &octavo::avx2::linear_kernels});
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni")) {
    tables.push_back({"avx512_vnni", &octavo::avx512_vnni::linear_kernels});
  }
#endif
  return tables;
}

}  // namespace octavo_test
