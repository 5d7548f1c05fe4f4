#include "core/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/philox.h"
#include "core/thread_pool.h"

namespace octavo {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

}  // namespace

Status Sampler::create(const StepKernels& kernels, int32_t vocab_size, int32_t max_rows, int num_members,
                       Sampler* out) {
  out->kernels_ = &kernels;
  out->vocab_size_ = vocab_size;
  out->summaries_.resize(static_cast<size_t>(max_rows) * out->num_slices());
  out->scratch_.resize(num_members);
  const size_t size = round_up(vocab_size, 16);
  for (Scratch& scratch : out->scratch_) {
    const size_t bytes = size * (sizeof(Candidate) + 2 * sizeof(float) + 2 * sizeof(int32_t));
    if (Status status = Mapping::create(bytes, &scratch.memory); !status.ok()) return status;
    scratch.candidates = scratch.memory.as<Candidate>();
    scratch.adjusted = reinterpret_cast<float*>(scratch.candidates + size);
    scratch.weights = scratch.adjusted + size;
    scratch.ids = reinterpret_cast<int32_t*>(scratch.weights + size);
    scratch.marks = scratch.ids + size;
    scratch.slice_sums.resize(out->num_slices());
    scratch.summaries.resize(out->num_slices());
    scratch.offers.resize(max_rows);
  }
  return {};
}

int32_t Sampler::slice_size(int32_t slice) const { return std::min(kVocabSlice, vocab_size_ - slice * kVocabSlice); }

void Sampler::summarize(const LogitSlab& slab, const SampleView& sample, int member, int num_members) {
  const int slices = num_slices();
  const Share share = share_of(slab.num_rows * slices, member, num_members);
  for (int i = share.begin; i < share.end; ++i) {
    const int row = i / slices, slice = i % slices;
    const float* x = slab.data + row * slab.stride + static_cast<size_t>(slice) * kVocabSlice;
    Summary& summary = summaries_[i];
    summary = {kernels_->greatest(x, slice_size(slice)), 0.0f};
    if (sample.num_logprobs[slab.first_row + row] >= 0 && std::isfinite(summary.max)) {
      summary.sum = kernels_->exp_sum(x, slice_size(slice), summary.max, 1.0f, nullptr);
    }
  }
}

void Sampler::choose(const LogitSlab& slab, const SampleView& sample, const ResultView& result, int member,
                     int num_members) {
  Scratch& scratch = scratch_[member];
  const Share share = share_of(slab.num_rows, member, num_members);
  for (int i = share.begin; i < share.end; ++i) {
    const int32_t row = slab.first_row + i;
    const float* logits = slab.data + i * slab.stride;
    const Summary* slices = &summaries_[static_cast<size_t>(i) * num_slices()];
    const int32_t token = sample.is_scored[row] ? sample.targets[row] : draw(logits, sample, row, slices, scratch);
    clear_result(result, row, token);
    if (sample.num_logprobs[row] >= 0) report(logits, token, sample, result, row, slices, scratch);
  }
}

// The row's token, and nothing about it.
void Sampler::clear_result(const ResultView& result, int32_t row, int32_t token) {
  result.token_ids[row] = token;
  result.ranks[row] = 0;
  result.logprobs[row] = std::numeric_limits<float>::quiet_NaN();
  std::fill_n(result.top_ids.begin() + row * result.top_width, result.top_width, -1);
  std::fill_n(result.top_logprobs.begin() + row * result.top_width, result.top_width,
              std::numeric_limits<float>::quiet_NaN());
}

bool Sampler::wants_greatest_only(const SampleView& sample, int32_t first_row, int32_t num_rows) {
  for (int32_t row = first_row; row < first_row + num_rows; ++row) {
    const bool is_adjusted = sample.bias_start[row] != sample.bias_start[row + 1] ||
                             sample.repetition_penalty[row] != 1.0f || sample.presence_penalty[row] != 0.0f ||
                             sample.frequency_penalty[row] != 0.0f;
    if (sample.is_scored[row] || sample.num_logprobs[row] >= 0 || sample.temperature[row] > 0.0f || is_adjusted) {
      return false;
    }
  }
  return true;
}

void Sampler::begin_offers(int member, int32_t num_rows) {
  std::fill_n(scratch_[member].offers.begin(), num_rows, Best{kMinusInfinity, 0});
}

void Sampler::offer(int member, int32_t row, int32_t first_id, const float* logits, int32_t size) {
  Best& best = scratch_[member].offers[row];
  const float greatest = kernels_->greatest(logits, size);
  if (greatest < best.logit || greatest == kMinusInfinity) return;
  if (greatest == best.logit && first_id > best.id) return;
  best = {greatest, first_id + std::max(kernels_->find(logits, size, greatest), 0)};
}

void Sampler::choose_greatest(int32_t first_row, int32_t num_rows, int num_members, const ResultView& result) const {
  for (int32_t row = 0; row < num_rows; ++row) {
    Best best = scratch_[0].offers[row];
    for (int member = 1; member < num_members; ++member) {
      const Best& other = scratch_[member].offers[row];
      if (other.logit > best.logit || (other.logit == best.logit && other.id < best.id)) best = other;
    }
    clear_result(result, first_row + row, best.id);
  }
}

Sampler::Best Sampler::find_best(const float* logits, const Summary* slices) const {
  int32_t best = 0;
  for (int32_t s = 1; s < num_slices(); ++s) {
    if (slices[s].max > slices[best].max) best = s;
  }
  const float logit = slices[best].max;
  if (logit == kMinusInfinity) return {logit, 0};
  const int32_t index = kernels_->find(logits + static_cast<size_t>(best) * kVocabSlice, slice_size(best), logit);
  return {logit, best * kVocabSlice + std::max(index, 0)};
}

// Logits after bias, repetition, presence and frequency penalty: a copy where any of them applies.
const float* Sampler::adjust(const float* logits, const SampleView& sample, int32_t row, Scratch& scratch) const {
  const int32_t bias_begin = sample.bias_start[row], bias_end = sample.bias_start[row + 1];
  const int32_t seen_begin = sample.seen_start[row], seen_end = sample.seen_start[row + 1];
  const int32_t made_begin = sample.made_start[row], made_end = sample.made_start[row + 1];
  const float repetition = sample.repetition_penalty[row];
  const float presence = sample.presence_penalty[row], frequency = sample.frequency_penalty[row];
  const bool is_repetition = repetition != 1.0f && seen_begin != seen_end;
  const bool is_count = (presence != 0.0f || frequency != 0.0f) && made_begin != made_end;
  if (bias_begin == bias_end && !is_repetition && !is_count) return logits;
  float* out = scratch.adjusted;
  std::memcpy(out, logits, vocab_size_ * sizeof(float));
  for (int32_t i = bias_begin; i < bias_end; ++i) out[sample.bias_ids[i]] += sample.bias_values[i];
  // Each id once, however often it is listed: marks say which are still to be done.
  if (is_repetition) {
    for (int32_t i = seen_begin; i < seen_end; ++i) scratch.marks[sample.seen_ids[i]] = 1;
    for (int32_t i = seen_begin; i < seen_end; ++i) {
      const int32_t id = sample.seen_ids[i];
      if (scratch.marks[id] == 0) continue;
      scratch.marks[id] = 0;
      out[id] = out[id] > 0.0f ? out[id] / repetition : out[id] * repetition;
    }
  }
  if (is_count) {
    for (int32_t i = made_begin; i < made_end; ++i) ++scratch.marks[sample.made_ids[i]];
    for (int32_t i = made_begin; i < made_end; ++i) {
      const int32_t id = sample.made_ids[i];
      if (scratch.marks[id] == 0) continue;
      out[id] -= presence;
      out[id] -= frequency * static_cast<float>(scratch.marks[id]);
      scratch.marks[id] = 0;
    }
  }
  return out;
}

int32_t Sampler::draw(const float* raw, const SampleView& sample, int32_t row, const Summary* slices,
                      Scratch& scratch) const {
  const float* logits = adjust(raw, sample, row, scratch);
  if (logits != raw) {
    for (int32_t s = 0; s < num_slices(); ++s) {
      const float* x = logits + static_cast<size_t>(s) * kVocabSlice;
      scratch.summaries[s] = {kernels_->greatest(x, slice_size(s)), 0.0f};
    }
    slices = scratch.summaries.data();
  }
  const Best best = find_best(logits, slices);
  const float temperature = sample.temperature[row];
  if (!(temperature > 0.0f) || !std::isfinite(best.logit)) return best.id;
  Draw draw{logits, best.logit, temperature, &scratch};
  keep_min_p(draw, sample.min_p[row]);
  keep_top_k(draw, sample.top_k[row]);
  keep_top_p(draw, sample.top_p[row]);
  keep_typical(draw, sample.typical_p[row]);
  const double u = uniform(sample.seeds[row], sample.choices[row], sample.positions[row]);
  const int32_t token = draw.num_candidates < 0 ? pick_any(draw, u) : pick(draw, u);
  return token >= 0 ? token : best.id;
}

// Candidates with a logit above `bound`, ranked by logit; not weighed yet. Returns how many.
int32_t Sampler::collect(const float* logits, double bound, Scratch& scratch) const {
  // One step below: rounding to float must not lose a logit on the bound.
  const float below = std::nextafter(static_cast<float>(bound), kMinusInfinity);
  const int32_t count = kernels_->collect_greater(logits, vocab_size_, below, scratch.ids);
  for (int32_t i = 0; i < count; ++i) {
    scratch.candidates[i] = {-static_cast<double>(logits[scratch.ids[i]]), 0.0, scratch.ids[i]};
  }
  return count;
}

// The `count` candidates of greatest logit, in no order. A slice adds only what beats the worst of those kept so far:
// on equal logits the earlier, lower id stays.
int32_t Sampler::collect_best(const float* logits, int32_t count, Scratch& scratch) const {
  Candidate* candidates = scratch.candidates;
  int32_t kept = 0;
  float bound = kMinusInfinity;
  for (int32_t s = 0; s < num_slices(); ++s) {
    const float* x = logits + static_cast<size_t>(s) * kVocabSlice;
    const int32_t found = kernels_->collect_greater(x, slice_size(s), bound, scratch.ids);
    for (int32_t i = 0; i < found; ++i) {
      candidates[kept++] = {-static_cast<double>(x[scratch.ids[i]]), 0.0, s * kVocabSlice + scratch.ids[i]};
    }
    if (found > 0 && kept > count) {
      std::nth_element(candidates, candidates + count - 1, candidates + kept, ranks_before);
      kept = count;
      bound = static_cast<float>(-candidates[count - 1].key);
    }
  }
  return kept;
}

// Weights exp((logit - max) / temperature) of all candidates, whose keys are their negative logits.
void Sampler::weigh(Draw& draw) const {
  Candidate* candidates = draw.scratch->candidates;
  for (int32_t i = 0; i < draw.num_candidates; ++i) {
    candidates[i].weight = std::exp((-candidates[i].key - draw.max) / draw.temperature);
  }
}

void Sampler::keep_min_p(Draw& draw, double min_p) const {
  if (!(min_p > 0.0)) return;
  // All that may pass and a few more; the weights decide.
  const double margin = 1e-3 * (1.0 + std::abs(draw.max));
  draw.num_candidates =
      collect(draw.logits, draw.max + draw.temperature * std::log(std::min(min_p, 1.0)) - margin, *draw.scratch);
  weigh(draw);
  Candidate* candidates = draw.scratch->candidates;
  const Candidate* end = std::remove_if(candidates, candidates + draw.num_candidates,
                                        [min_p](const Candidate& c) { return c.weight < min_p; });
  draw.num_candidates = static_cast<int32_t>(end - candidates);
}

void Sampler::keep_top_k(Draw& draw, int32_t top_k) const {
  if (top_k <= 0 || top_k >= vocab_size_) return;
  Candidate* candidates = draw.scratch->candidates;
  if (draw.num_candidates < 0) {
    draw.num_candidates = collect_best(draw.logits, top_k, *draw.scratch);
    weigh(draw);
  } else if (draw.num_candidates > top_k) {
    std::nth_element(candidates, candidates + top_k - 1, candidates + draw.num_candidates, ranks_before);
    draw.num_candidates = top_k;
  }
}

// Ranks candidates until their weights sum to `mass`; returns how many that took.
int32_t Sampler::keep_mass(Candidate* candidates, int32_t count, double mass, bool* is_reached) {
  double sum = 0.0;
  for (int32_t done = 0; done < count;) {
    const int32_t next = std::min(count, std::max(64, done * 8));
    if (next < count) std::nth_element(candidates + done, candidates + next, candidates + count, ranks_before);
    std::sort(candidates + done, candidates + next, ranks_before);
    for (; done < next; ++done) {
      sum += candidates[done].weight;
      if (sum >= mass) {
        *is_reached = true;
        return done + 1;
      }
    }
  }
  *is_reached = false;
  return count;
}

// Weights of one slice, kept at their ids' places if `weights` is not null; returns their sum.
float Sampler::weigh_slice(const Draw& draw, int32_t slice, float* weights) const {
  const size_t first = static_cast<size_t>(slice) * kVocabSlice;
  return kernels_->exp_sum(draw.logits + first, slice_size(slice), static_cast<float>(draw.max),
                           static_cast<float>(draw.temperature), weights == nullptr ? nullptr : weights + first);
}

// Sum of all weights, slice by slice.
double Sampler::sum_slices(const Draw& draw, float* weights) const {
  double total = 0.0;
  for (int32_t s = 0; s < num_slices(); ++s) {
    draw.scratch->slice_sums[s] = weigh_slice(draw, s, weights);
    total += draw.scratch->slice_sums[s];
  }
  return total;
}

void Sampler::keep_top_p(Draw& draw, double top_p) const {
  if (!(top_p < 1.0)) return;
  Candidate* candidates = draw.scratch->candidates;
  bool is_reached = false;
  if (draw.num_candidates >= 0) {
    double total = 0.0;
    for (int32_t i = 0; i < draw.num_candidates; ++i) total += candidates[i].weight;
    draw.num_candidates = keep_mass(candidates, draw.num_candidates, top_p * total, &is_reached);
    return;
  }
  const float* weights = draw.scratch->weights;
  const double total = sum_slices(draw, draw.scratch->weights);
  // Few ids carry the mass: look at those near the greatest first, at all only if they do not suffice.
  for (const double depth : {8.0, 16.0, std::numeric_limits<double>::infinity()}) {
    draw.num_candidates = collect(draw.logits, draw.max - depth * draw.temperature, *draw.scratch);
    for (int32_t i = 0; i < draw.num_candidates; ++i) candidates[i].weight = weights[candidates[i].id];
    draw.num_candidates = keep_mass(candidates, draw.num_candidates, top_p * total, &is_reached);
    if (is_reached) return;
  }
}

void Sampler::keep_typical(Draw& draw, double typical_p) const {
  if (!(typical_p < 1.0)) return;
  if (draw.num_candidates < 0) {
    draw.num_candidates = collect(draw.logits, kMinusInfinity, *draw.scratch);
    weigh(draw);
  }
  Candidate* candidates = draw.scratch->candidates;
  Candidate* end = std::remove_if(candidates, candidates + draw.num_candidates,
                                  [](const Candidate& c) { return !(c.weight > 0.0); });
  draw.num_candidates = static_cast<int32_t>(end - candidates);
  double total = 0.0, entropy = 0.0;
  for (const Candidate* c = candidates; c != end; ++c) total += c->weight;
  for (Candidate* c = candidates; c != end; ++c) {
    c->key = -std::log(c->weight / total);
    entropy += c->weight / total * c->key;
  }
  for (Candidate* c = candidates; c != end; ++c) c->key = std::abs(c->key - entropy);
  bool is_reached = false;
  draw.num_candidates = keep_mass(candidates, draw.num_candidates, typical_p * total, &is_reached);
}

// The first candidate by id whose cumulative weight exceeds u; -1 if there is none.
int32_t Sampler::pick(Draw& draw, double u) const {
  Candidate* candidates = draw.scratch->candidates;
  Candidate* end = candidates + draw.num_candidates;
  std::sort(candidates, end, [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  double total = 0.0, sum = 0.0;
  for (const Candidate* c = candidates; c != end; ++c) total += c->weight;
  int32_t last = -1;
  for (const Candidate* c = candidates; c != end; ++c) {
    if (!(c->weight > 0.0)) continue;
    sum += c->weight;
    last = c->id;
    if (sum > u * total) break;
  }
  return last;
}

// The same over the whole vocabulary.
int32_t Sampler::pick_any(const Draw& draw, double u) const {
  const double goal = u * sum_slices(draw, nullptr);
  const std::vector<float>& sums = draw.scratch->slice_sums;
  int32_t slice = 0;
  double before = 0.0, sum = 0.0;
  for (int32_t s = 0; s < num_slices() && sum <= goal; ++s) {
    if (!(sums[s] > 0.0f)) continue;
    before = sum;
    sum += sums[s];
    slice = s;
  }
  const float* weights = draw.scratch->weights;
  weigh_slice(draw, slice, draw.scratch->weights);
  const int32_t first = slice * kVocabSlice;
  int32_t last = -1;
  sum = before;
  for (int32_t id = first; id < first + slice_size(slice); ++id) {
    if (!(weights[id] > 0.0f)) continue;
    sum += weights[id];
    last = id;
    if (sum > goal) break;
  }
  return last;
}

// Log-probability and rank of the token and the best alternatives, of the raw distribution.
void Sampler::report(const float* logits, int32_t token, const SampleView& sample, const ResultView& result,
                     int32_t row, const Summary* slices, Scratch& scratch) const {
  const double max = find_best(logits, slices).logit;
  double sum = 0.0;
  for (int32_t s = 0; s < num_slices(); ++s) {
    if (slices[s].sum > 0.0f) sum += slices[s].sum * std::exp(slices[s].max - max);
  }
  const double log_sum = max + std::log(sum);
  result.logprobs[row] = static_cast<float>(logits[token] - log_sum);
  result.ranks[row] = 1 + kernels_->count_greater(logits, vocab_size_, logits[token]);
  const int32_t num_top = sample.num_logprobs[row];
  if (num_top == 0) return;
  const int32_t count = collect_best(logits, num_top, scratch);
  std::sort(scratch.candidates, scratch.candidates + count, ranks_before);
  for (int32_t i = 0; i < count; ++i) {
    result.top_ids[row * result.top_width + i] = scratch.candidates[i].id;
    result.top_logprobs[row * result.top_width + i] = static_cast<float>(-scratch.candidates[i].key - log_sum);
  }
}

}  // namespace octavo
