// Chooses tokens from logits as Executor.execute of octavo.ops.protocol defines it.
//
// Bias and penalties are float arithmetic in the order of the definition, so that equal logits stay equal; what is
// computed of kept candidates is double. Sums over the whole vocabulary run over fixed slices of 4096 ids, merged in
// order. The vocabulary is never sorted: candidates are selected.
#pragma once

#include <cstdint>
#include <vector>

#include "core/arena.h"
#include "core/batch.h"
#include "kernels/step_table.h"

namespace octavo {

// Logits of consecutive output rows: row i is at data + i * stride.
struct LogitSlab {
  const float* data;
  size_t stride;
  int32_t first_row;
  int32_t num_rows;
};

class Sampler {
 public:
  static Status create(const StepKernels& kernels, int32_t vocab_size, int32_t max_rows, int num_members, Sampler* out);

  // Both are called by all members, with a barrier between them.
  void summarize(const LogitSlab& slab, const SampleView& sample, int member, int num_members);
  void choose(const LogitSlab& slab, const SampleView& sample, const ResultView& result, int member, int num_members);

  // Where nothing is wanted of rows but the id of the greatest logit, logits need not be kept. Members begin, offer
  // pieces of rows (counted from the slab's first), in any order, and after a barrier one of them chooses.
  static bool wants_greatest_only(const SampleView& sample, int32_t first_row, int32_t num_rows);
  void begin_offers(int member, int32_t num_rows);
  void offer(int member, int32_t row, int32_t first_id, const float* logits, int32_t size);
  void choose_greatest(int32_t first_row, int32_t num_rows, int num_members, const ResultView& result) const;

 private:
  struct Summary {
    float max;  // -inf if there is no number
    float sum;  // of exp(logit - max), where log-probabilities are asked for
  };
  struct Best {
    float logit;
    int32_t id;  // the lowest of equal ones; 0 if there is no number
  };
  struct Candidate {
    double key;  // candidates are ranked by rising key, then rising id
    double weight;
    int32_t id;
  };
  // One member's memory, each array as long as the vocabulary.
  struct Scratch {
    Mapping memory;
    Candidate* candidates;
    float* adjusted;
    float* weights;
    int32_t* ids;
    int32_t* marks;  // all zero between rows
    std::vector<float> slice_sums;
    std::vector<Summary> summaries;  // of adjusted logits
    std::vector<Best> offers;        // by row
  };
  // What the steps of one draw share.
  struct Draw {
    const float* logits;
    double max;
    double temperature;
    Scratch* scratch;
    int32_t num_candidates = -1;  // -1: nothing was filtered yet
  };

  static bool ranks_before(const Candidate& a, const Candidate& b) {
    return a.key != b.key ? a.key < b.key : a.id < b.id;
  }
  int32_t num_slices() const { return (vocab_size_ - 1) / kVocabSlice + 1; }
  int32_t slice_size(int32_t slice) const;
  static void clear_result(const ResultView& result, int32_t row, int32_t token);
  Best find_best(const float* logits, const Summary* slices) const;
  const float* adjust(const float* logits, const SampleView& sample, int32_t row, Scratch& scratch) const;
  int32_t draw(const float* logits, const SampleView& sample, int32_t row, const Summary* slices,
               Scratch& scratch) const;
  int32_t collect(const float* logits, double bound, Scratch& scratch) const;
  int32_t collect_best(const float* logits, int32_t count, Scratch& scratch) const;
  void weigh(Draw& draw) const;
  void keep_min_p(Draw& draw, double min_p) const;
  void keep_top_k(Draw& draw, int32_t top_k) const;
  void keep_top_p(Draw& draw, double top_p) const;
  void keep_typical(Draw& draw, double typical_p) const;
  static int32_t keep_mass(Candidate* candidates, int32_t count, double mass, bool* is_reached);
  float weigh_slice(const Draw& draw, int32_t slice, float* weights) const;
  double sum_slices(const Draw& draw, float* weights) const;
  int32_t pick(Draw& draw, double u) const;
  int32_t pick_any(const Draw& draw, double u) const;
  void report(const float* logits, int32_t token, const SampleView& sample, const ResultView& result, int32_t row,
              const Summary* slices, Scratch& scratch) const;

  const StepKernels* kernels_ = nullptr;
  int32_t vocab_size_ = 0;
  std::vector<Summary> summaries_;  // [max_rows, num_slices]
  std::vector<Scratch> scratch_;    // by member
};

}  // namespace octavo
