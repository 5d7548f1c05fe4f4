// The stages of a plan but attention: what token stages do of a tile, and products.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/executor.h"

namespace octavo {
namespace {

// Asks for the lines of a row as this core's own. Older CPUs take `prefetchw` for a no-op.
inline void claim_lines(const float* row, int32_t size) {
  constexpr int32_t kFloatsPerLine = kCacheLine / sizeof(float);
  for (int32_t i = 0; i < size; i += kFloatsPerLine) {
#if defined(__x86_64__)
    asm volatile("prefetchw %0" ::"m"(row[i]));
#else
    __builtin_prefetch(row + i, 1);
#endif
  }
}

}  // namespace

void Executor::run_token_stage(const Stage& stage, const Window& window, const Part& part, int32_t begin,
                               int32_t end) {
  const auto in = [&](int32_t t) { return row(stage.in, part, t); };
  const auto in2 = [&](int32_t t) { return row(stage.in2, part, t); };
  const auto out = [&](int32_t t) { return row(stage.out, part, t); };
  const BatchView& batch = *now_.batch;
  switch (stage.kind) {
    case StageKind::kRopeTable:
      return fill_rope_table(stage, window, part, begin, end);
    case StageKind::kLoadRows:
      return load_rows(stage, window, part, begin, end);
    case StageKind::kStoreRows:
      return store_rows(stage, window, part, begin, end);
    case StageKind::kEmbed:
      for (int32_t t = begin; t < end; ++t) {
        linear_->unpack_row(*stage.table, batch.token_ids[window.begin + t], stage.number, out(t));
      }
      return;
    case StageKind::kRmsNorm:
      for (int32_t t = begin; t < end; ++t) {
        step_->rms_norm(in(t), stage.weight, stage.in.width / stage.group_size, stage.group_size, stage.number, out(t));
      }
      return;
    case StageKind::kRope: {
      const RopeSpec& spec = ropes_[stage.spec];
      for (int32_t t = begin; t < end; ++t) {
        step_->rope(in(t), in2(t), in2(t) + spec.num_dims, spec.order, stage.in.width / spec.head_dim, spec.head_dim,
                    spec.num_dims, out(t));
      }
      return;
    }
    case StageKind::kGated:
      for (int32_t t = begin; t < end; ++t) {
        step_->gated(stage.activation, in(t), in2(t), stage.out.width, out(t));
      }
      return;
    case StageKind::kAdd:
      for (int32_t t = begin; t < end; ++t) step_->add(in(t), in2(t), stage.out.width, out(t));
      return;
    case StageKind::kSoftcap:
      for (int32_t t = begin; t < end; ++t) step_->softcap(in(t), stage.number, stage.out.width, out(t));
      return;
    case StageKind::kQuantize:
      linear_->quantize(in(part.begin), stage.in.stride, part.end - part.begin, stage.in.width, runtime_->precision,
                        (begin - part.begin) / kTileTokens, (begin - part.begin) / kTileTokens + 1, part.acts);
      return;
    case StageKind::kWriteKv: {
      const KVLayer layer = kv_.layer(attentions_[stage.spec].layer);
      begin = std::max(begin, part.stored.begin);
      end = std::min(end, part.stored.end);
      if (begin >= end) return;
      step_->write_kv(layer, {in(begin), stage.in.stride, in2(begin), stage.in2.stride},
                      &batch.slots[window.begin + begin], end - begin);
      return;
    }
    case StageKind::kMultiply:
    case StageKind::kAttend:
      return;  // shared otherwise
  }
}

// Angles in double: at position 131,072 a float angle would be off by 0.004.
void Executor::fill_rope_table(const Stage& stage, const Window& window, const Part& part, int32_t begin,
                               int32_t end) {
  const RopeSpec& spec = ropes_[stage.spec];
  const int32_t half = spec.num_dims / 2;
  for (int32_t t = begin; t < end; ++t) {
    float* cos = row(stage.out, part, t);
    float* sin = cos + spec.num_dims;
    const double position = now_.batch->positions[window.begin + t];
    for (int32_t i = 0; i < half; ++i) {
      const int32_t first = spec.order == RopeOrder::kNeox ? i : 2 * i;
      const int32_t second = spec.order == RopeOrder::kNeox ? i + half : 2 * i + 1;
      const double angle = position * spec.frequencies[i];
      cos[first] = cos[second] = static_cast<float>(std::cos(angle));
      sin[second] = static_cast<float>(std::sin(angle));
      sin[first] = -sin[second];
    }
  }
}

void Executor::load_rows(const Stage& stage, const Window& window, const Part& part, int32_t begin,
                         int32_t end) {
  const size_t stride = kept_stride();
  for (int32_t t = begin; t < end; ++t) {
    std::memcpy(row(stage.out, part, t),
                kept_rows_.as<float>() + (window.begin + t) * stride, hidden_size_ * sizeof(float));
  }
}

// Keeps the hidden rows whose logits are wanted.
void Executor::store_rows(const Stage& stage, const Window& window, const Part& part, int32_t begin,
                          int32_t end) {
  const auto rows = now_.batch->output_rows;
  const size_t stride = kept_stride();
  begin = window.begin + std::max(begin, part.stored.begin);
  end = window.begin + std::min(end, part.stored.end);
  auto kept = std::lower_bound(rows.begin(), rows.end(), begin);
  for (; kept != rows.end() && *kept < end; ++kept) {
    std::memcpy(kept_rows_.as<float>() + (kept - rows.begin()) * stride, row(stage.in, part, *kept - window.begin),
                hidden_size_ * sizeof(float));
  }
}

MultiplyInput Executor::multiply_input(const Stage& stage, const Part& part) const {
  return {part.acts, runtime_->precision, row(stage.in, part, part.begin), stage.in.stride, part.end - part.begin};
}

void Executor::run_multiply(const Stage& stage, const Window& window, Member& member) {
  const Part& part = member.part;
  const MultiplyInput in = multiply_input(stage, part);
  FetchQueue* fetch = fetch_for(stage, window, member);
  const Share own = part.sharing == Sharing::kTokens || team_size_ == 1
                        ? Share{0, stage.num_panels}
                        : Share{panel_at(stage, by_panels_.begin_of(member.index)),
                                panel_at(stage, by_panels_.begin_of(member.index + 1))};
  int32_t before = 0;
  for (const Product& product : stage.products) {
    const int32_t num_panels = product.matrix->num_panels;
    const Share panels{std::clamp(own.begin - before, 0, num_panels), std::clamp(own.end - before, 0, num_panels)};
    before += num_panels;
    if (panels.begin == panels.end) continue;
    float* out = row(product.out, part, part.begin) + panels.begin * kPanelRows;
    // All members have read what was here, so the lines lie in every cache: a store would wait until the others have
    // dropped them, one line after another.
    if (part.sharing == Sharing::kCopies && team_size_ > 1) {
      for (int32_t t = 0; t < in.tokens; ++t) {
        claim_lines(out + t * product.out.stride, (panels.end - panels.begin) * kPanelRows);
      }
    }
    multiply_product(product, in, panels, out, product.out.stride, fetch);
  }
}

// out: [tokens, rows of the panels], from the first panel's first row on.
void Executor::multiply_product(const Product& product, const MultiplyInput& in, const Share& panels, float* out,
                                size_t stride, FetchQueue* fetch) const {
  PackedMatrix part = *product.matrix;
  const int32_t first = panels.begin * kPanelRows;
  part.num_panels = panels.end - panels.begin;
  part.rows = std::min(panels.end * kPanelRows, part.rows) - first;
  part.data += panels.begin * part.panel_bytes;
  linear_->multiply(part, in, 0, part.num_panels, out, stride, fetch);
  if (product.bias == nullptr) return;
  for (int32_t t = 0; t < in.tokens; ++t) step_->add(out + t * stride, product.bias + first, part.rows, out + t * stride);
}

}  // namespace octavo
