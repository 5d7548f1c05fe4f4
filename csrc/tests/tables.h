// The linear kernel tables this machine can run.
#pragma once

#include <vector>

#include "cpu/dispatch.h"

namespace octavo_test {

struct NamedTable {
  const char* name;
  const octavo::LinearKernels* kernels;
};

inline std::vector<NamedTable> supported_tables() {
  std::vector<NamedTable> tables;
  for (const octavo::KernelTable* table : octavo::supported_tables(octavo::probe_features())) {
    tables.push_back({table->name, table->linear});
  }
  return tables;
}

}  // namespace octavo_test
