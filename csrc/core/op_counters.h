// Where the time of steps goes, stage by stage: taken by one member while counting is on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/plan.h"

namespace octavo {

// Sums over all runs of a stage, as member 0 saw them. What it waited for the others is not in `work_ns`.
struct StageCounter {
  int64_t calls = 0;
  int64_t rows = 0;  // tokens, or rows of logits
  int64_t work_ns = 0;
  int64_t wait_ns = 0;
};

// Counters of stages that do the same work, in whatever layer.
struct OpCount {
  std::string kind;
  std::vector<const PackedMatrix*> matrices;  // multiply, embed
  StageCounter sum;
};

// A stop watch that does nothing when it is off.
class Lap {
 public:
  explicit Lap(bool is_on) : is_on_(is_on), last_(is_on ? now_ns() : 0) {}
  void add_to(int64_t& total_ns) {
    if (!is_on_) return;
    const int64_t at = now_ns();
    total_ns += at - last_;
    last_ = at;
  }

 private:
  const bool is_on_;
  int64_t last_;
};

// Adds the stages of a plan to `counts`, those alike to one.
void add_counts(const Plan& plan, const std::vector<StageCounter>& stages, std::vector<OpCount>& counts);

}  // namespace octavo
