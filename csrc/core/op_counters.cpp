#include "core/op_counters.h"

#include <algorithm>
#include <array>
#include <tuple>

namespace octavo {
namespace {

// In the order of StageKind.
constexpr std::array kStageNames = {"rope_table", "load_rows", "embed",    "rms_norm",   "rope",     "gated",  "add",
                                    "softcap",    "quantize",  "write_kv", "store_rows", "multiply", "attend"};
static_assert(kStageNames.size() == static_cast<size_t>(StageKind::kAttend) + 1);

bool is_alike(const PackedMatrix* a, const PackedMatrix* b) {
  return std::tie(a->format, a->rows, a->cols) == std::tie(b->format, b->rows, b->cols);
}

}  // namespace

void add_counts(const Plan& plan, const std::vector<StageCounter>& stages, std::vector<OpCount>& counts) {
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const Stage& stage = plan.stages[i];
    OpCount one{kStageNames[static_cast<size_t>(stage.kind)], {}, stages[i]};
    if (stage.table != nullptr) one.matrices.push_back(stage.table);
    for (const Product& product : stage.products) one.matrices.push_back(product.matrix);
    const auto same = std::find_if(counts.begin(), counts.end(), [&](const OpCount& other) {
      return other.kind == one.kind &&
             std::equal(other.matrices.begin(), other.matrices.end(), one.matrices.begin(), one.matrices.end(), is_alike);
    });
    if (same == counts.end()) {
      counts.push_back(std::move(one));
      continue;
    }
    same->sum.calls += one.sum.calls;
    same->sum.rows += one.sum.rows;
    same->sum.work_ns += one.sum.work_ns;
    same->sum.wait_ns += one.sum.wait_ns;
  }
}

}  // namespace octavo
