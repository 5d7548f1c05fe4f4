// The head: logits of the rows that were kept, and the tokens drawn from them.
//
// Logits are made in pieces of consecutive ids, which members take from their own share first, then from those of others.
// Where rows want no more than their greatest logit, a piece never leaves the member's cache: it is looked through and
// forgotten.

#include <algorithm>

#include "core/executor.h"

namespace octavo {

void Executor::run_head(const Window& window, Member& member) {
  ThreadPool& pool = runtime_->pool;
  if (window.begin > 0) pool.barrier(member.index);  // the slab before is read until then
  member.part = head_part(window.count, member);
  const bool are_kept = !Sampler::wants_greatest_only(*now_.sample, window.begin, window.count);
  items_[member.index].next[kLogitItems].store(0, std::memory_order_relaxed);
  sampler_.begin_offers(member.index, window.count);
  run_plan(head_, head_counters_, window, member);
  const bool is_counted = is_counting_ && member.index == 0;
  StageCounter none{};
  StageCounter& counter = is_counted ? head_counters_[head_.logits_stage] : none;
  Lap lap(is_counted);
  pool.barrier(member.index);  // pieces may be made of what others have quantised
  lap.add_to(counter.wait_ns);
  make_logits(are_kept, member, counter, lap);
  pool.barrier(member.index);
  lap.add_to(counter.wait_ns);
  draw_tokens(window, are_kept, member);
  lap.add_to(sample_counter_.work_ns);
  if (!is_counted) return;
  for (StageCounter* each : {&counter, &sample_counter_}) {
    ++each->calls;
    each->rows += window.count;
  }
}

void Executor::make_logits(bool are_kept, const Member& member, StageCounter& counter, Lap& lap) {
  const Stage& stage = head_.stages[head_.logits_stage];
  const Product& product = stage.products.front();
  const PackedMatrix& matrix = *product.matrix;
  const bool is_by_tokens = member.part.sharing == Sharing::kTokens;
  // With many rows each member has pieces of all ids, for its own rows.
  const int32_t few = round_up(matrix.num_panels / (kLeastPieces * team_size_) + 1, 16);
  const int32_t panels = is_by_tokens ? kPieceIds / kPanelRows : std::min<int32_t>(few, kPieceIds / kPanelRows);
  const int32_t num_pieces = (matrix.num_panels - 1) / panels + 1;
  const auto share = [&](int owner) {
    return is_by_tokens ? Share{owner * num_pieces, (owner + 1) * num_pieces}
                        : share_of(num_pieces, owner, team_size_);
  };
  for (int i = take(kLogitItems, member, share); i >= 0; i = take(kLogitItems, member, share)) {
    const Part& part = members_[is_by_tokens ? i / num_pieces : member.index].part;
    const int32_t first_panel = i % num_pieces * panels, first_id = first_panel * kPanelRows;
    const Share piece{first_panel, std::min(first_panel + panels, matrix.num_panels)};
    const int32_t size = std::min(piece.end * kPanelRows, matrix.rows) - first_id;
    float* out = are_kept ? row(product.out, part, part.begin) + first_id : member.logits;
    const size_t stride = are_kept ? product.out.stride : kPieceStride;
    multiply_product(product, multiply_input(stage, part), piece, out, stride, nullptr);
    for (size_t s = head_.logits_stage + 1; s < head_.stages.size(); ++s) {
      for (int32_t t = 0; t < part.end - part.begin; ++t) {
        step_->softcap(out + t * stride, head_.stages[s].number, size, out + t * stride);
      }
    }
    lap.add_to(counter.work_ns);
    for (int32_t t = part.begin; t < part.end && !are_kept; ++t) {
      sampler_.offer(member.index, t, first_id, out + (t - part.begin) * stride, size);
    }
    lap.add_to(sample_counter_.work_ns);
    note_progress(member);
  }
}

void Executor::draw_tokens(const Window& window, bool are_kept, const Member& member) {
  if (!are_kept) {
    if (member.index == 0) sampler_.choose_greatest(window.begin, window.count, team_size_, *now_.result);
    return;
  }
  const LogitSlab slab{row(head_.output, member.part, 0), head_.output.stride, window.begin, window.count};
  sampler_.summarize(slab, *now_.sample, member.index, team_size_);
  runtime_->pool.barrier(member.index);
  sampler_.choose(slab, *now_.sample, *now_.result, member.index, team_size_);
}

}  // namespace octavo
