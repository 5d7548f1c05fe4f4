// What one step of a Program must do at least: the multiply-accumulates and bytes its ceilings are divided by.
#pragma once

#include <cstdint>
#include <vector>

#include "core/program.h"
#include "core/weight_store.h"

namespace octavo {

// The matrices of a function: multiply-accumulates per row, and the packed bytes read once per step.
struct MatrixWork {
  int64_t int8_macs = 0;  // of quantised formats
  int64_t float_macs = 0;
  int64_t bytes = 0;
};

struct ProgramWork {
  MatrixWork body;  // per token
  MatrixWork head;  // per output row
  std::vector<int32_t> windows;  // by attention layer: how many tokens back it sees (0: all)
};

ProgramWork work_of(const Program& program, const WeightStore& weights);

}  // namespace octavo
