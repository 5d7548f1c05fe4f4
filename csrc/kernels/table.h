// The kernels of one ISA. The executor holds a pointer to its table: two tables can be compared in one process.
// A change after which a kernel gives other bits raises NUMERICS in src/octavo/ops/numerics.py.
#pragma once

#include <cstdint>

#include "cpu/features.h"
#include "kernels/linear_table.h"
#include "kernels/peak_table.h"
#include "kernels/step_table.h"

namespace octavo {

struct KernelTable {
  const char* name;
  Features needs;
  const LinearKernels* linear;
  const StepKernels* step;
  const PeakKernels* peak;
};

}  // namespace octavo
