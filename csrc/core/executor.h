// Runs a Program over batches: one call a step, all threads from the first token stage to the sampled tokens.
//
// Between start and end of execute() nothing is allocated and nothing thrown; all sizes come from the Program. Long
// prefills go through the body in chunks, so that activations stay in the cache: kernels are row-invariant and
// attention reads the KV pool only, hence results do not change.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/arena.h"
#include "core/batch.h"
#include "core/kv_pool.h"
#include "core/op_counters.h"
#include "core/plan.h"
#include "core/program.h"
#include "core/sampler.h"
#include "core/team_balance.h"
#include "core/team_control.h"
#include "core/thread_pool.h"
#include "core/weight_store.h"
#include "kernels/table.h"

namespace octavo {

// What a backend shares between its executors: threads, kernels, weights.
struct Runtime {
  Runtime(int num_threads, const KernelTable* chosen, Precision activations = Precision::kInt8)
      : table(chosen), precision(activations), pool(num_threads) {}
  const KernelTable* const table;
  const Precision precision;  // of the activations that integer formats multiply
  ThreadPool pool;
  WeightStore weights;
};

class Executor {
 public:
  // Chunks of so many tokens for each thread: what a layer makes of them stays near, in its cache. Of one thread as many as
  // of two; at most kMaxChunkTokens all together.
  static constexpr int32_t kChunkTokensEach = 32, kMaxChunkTokens = 256;
  static constexpr int32_t kSlabRows = 32;  // rows of logits held at once
  // Logits are made in pieces of so many ids, at least so many pieces for each member.
  static constexpr int32_t kPieceIds = kVocabSlice, kLeastPieces = 8;
  static constexpr size_t kPieceStride = kPieceIds + 16;
  static constexpr int32_t kQueryTokens = 8;  // query tokens that share K and V loads
  // With fewer attention items than this per thread, contexts are split over threads: tiles of at most 16 query rows.
  static constexpr int kItemsPerThread = 4;
  static constexpr int32_t kSplitRows = 16;
  // Up to this many tokens every member has copies.
  static constexpr int32_t kCopiedTokens = 15;
  // Keys and values are fetched ahead from this many tokens on, where products wait for the multiplier; of a layer as
  // much as stays in a cache; at most as many lines with a tile as the core tracks without a stall.
  static constexpr int32_t kFetchTokens = 16;
  static constexpr size_t kFetchBytes = size_t{6} << 20;
  static constexpr int32_t kFetchLines = 48;
  static_assert(kFetchTokens > kCopiedTokens);  // with copies, products may begin before the list is made
  // Members take tokens of their own from this many each on; in steps of kTokenStep.
  static constexpr int32_t kOwnTokens = 8;
  static constexpr int32_t kTokenStep = 4;
  // With many tokens what others do to a core shows at once. With few, members wait for memory that they share: only a
  // lasting difference says something of the cores.
  static constexpr int64_t kTokenMemoryNs = 60'000'000, kPanelMemoryNs = 1'000'000'000;
  static constexpr double kTokenTolerance = 0.05, kPanelTolerance = 0.25;
  // Members attend to their own requests alone, without waiting for each other, if none has more to read than this
  // times the mean.
  static constexpr double kMaxImbalance = 1.15;

  static Status create(std::shared_ptr<Runtime> runtime, const Program& program, const KVShape& kv_shape,
                       int32_t num_blocks, int32_t max_batched_tokens, std::unique_ptr<Executor>* out);

  Status execute(const BatchView& batch, const SampleView& sample, const ResultView& result);
  // Up to run.num_steps decode steps, each from what the one before drew: the same bits as that many calls of execute.
  // tokens: [num_steps, R], of which *num_done steps are written.
  Status decode(const BatchView& batch, const SampleView& sample, const DecodeRunView& run, std::span<int32_t> tokens,
                int32_t* num_done);
  KVPool& kv() { return kv_; }

  // Whether steps from now on are counted; turning it on starts from zero.
  void set_counting(bool is_counting);
  // How members begin to share the work: by what each does of it, in any unit. Later steps follow what is seen.
  void set_parts(std::span<const double> parts) {
    by_panels_.reset(parts);
    by_tokens_.reset(parts);
  }
  // Adds 1 to *counter after every stage, seen by whoever watches this memory. Not while a step runs.
  void watch(int64_t* counter) { progress_ = counter; }
  // What was counted, stages that do the same work together. Not while a step runs.
  std::vector<OpCount> op_counts() const;
  const Runtime& runtime() const { return *runtime_; }

 private:
  // The arrays of a run's current step, [max_tokens] each.
  struct DecodeArrays {
    std::vector<int32_t> token_ids, positions, slots, seq_lens, sample_positions, ranks;
    std::vector<float> logprobs;
  };
  // A run of decode steps under way.
  struct DecodeState {
    const DecodeRunView* run;
    BatchView batch;
    SampleView sample;
    ResultView result;  // of the current step
    int32_t num_done = 0;
    bool is_over = false;
  };
  // Consecutive tokens of one request within a chunk.
  struct AttentionTile {
    int32_t first_token;  // in the chunk
    int32_t num_tokens;
    int32_t first_position;
    const int32_t* block_table;
  };
  // The context tiles [first, last) that a query tile sees in one layer.
  struct ContextRange {
    int32_t first, last;
  };
  struct Step {
    const BatchView* batch;
    const SampleView* sample;
    const ResultView* result;
  };
  // Memory of a plan's values, for up to this many tokens.
  struct Area {
    float* data = nullptr;
    int32_t max_tokens = 0;
  };
  // The tokens, or kept rows, a plan runs over: [begin, begin + count).
  struct Window {
    int32_t begin, count;
  };
  // The context blocks of the decoding requests of a chunk, as attention layers of one window see them.
  struct FetchList {
    int32_t window;
    std::vector<int32_t> blocks;
    std::vector<int32_t> start;  // by tile, [num_tiles + 1]
  };
  // Items already taken of one member's share: of attention in stages with even and with odd number, of logits.
  struct alignas(kCacheLine) ItemCounter {
    std::atomic<int> next[3] = {0, 0, 0};
  };
  static constexpr int kLogitItems = 2;
  // How members share a plan's work.
  enum class Sharing {
    // Few tokens: every member runs the token stages of all tokens, on a copy of its own, and products are shared by
    // panels. No member waits for what another made of a product, nor does it fetch that from the other's cache.
    kCopies,
    kTiles,   // token stages are shared by tiles of 8 tokens, products by panels
    // Many tokens: a member takes its own through all stages but attention, and multiplies them by whole matrices.
    kTokens,
  };
  // What a member does of the plan at hand.
  struct Part {
    Sharing sharing = Sharing::kTiles;
    int32_t begin = 0, end = 0;  // the tokens of its products, in the window
    Share tokens{0, 0};          // the tokens of its token stages
    Share stored{0, 0};          // of these, the tokens it writes to the KV pool and keeps for the head
    Area shared, copied;
    std::byte* acts = nullptr;  // tokens [begin, end) quantised
  };
  // One thread's position in the step, and its memory.
  struct Member {
    int index = 0;
    Part part{};
    std::byte* acts = nullptr;  // for kTokens and kCopies
    float* copied = nullptr;    // for kCopies
    int32_t fetched_attend = -1;  // the stage that `fetch` is for
    FetchQueue fetch{};
    int num_attends = 0;
    float* states = nullptr;
    float* partials = nullptr;
    float* scores = nullptr;
    float* logits = nullptr;  // of a piece: kSlabRows rows of kPieceStride
  };

  explicit Executor(std::shared_ptr<Runtime> runtime)
      : runtime_(std::move(runtime)),
        control_(runtime_->pool.size(), kOwnTokens * runtime_->pool.size()),
        by_panels_(runtime_->pool.size(), kPanelMemoryNs, kPanelTolerance),
        by_tokens_(runtime_->pool.size(), kTokenMemoryNs, kTokenTolerance) {}
  Status allocate();
  // Floats from one kept row to the next.
  size_t kept_stride() const { return round_up(hidden_size_, 16); }

  TeamControl::Run run_team(ThreadPool::Task task, void* context);
  void watch_members(int64_t now_ns);
  void observe_members(TeamBalance& balance, int64_t now_ns);
  void begin_chunk(int32_t begin, int32_t count);
  void end_chunk();
  void run_step(Member& member);
  void run_decode(DecodeState& state, Member& member);
  void begin_decode(const BatchView& batch, const SampleView& sample, std::span<int32_t> tokens, DecodeState& state);
  void advance_decode(DecodeState& state);
  bool needs_barrier(const Plan& plan, size_t stage, size_t next, const Part& part) const;
  Sharing sharing_for(int32_t count) const;
  Part body_part(int32_t count, const Member& member) const;
  Part head_part(int32_t count, const Member& member) const;
  static float* row(const Buffer& buffer, const Part& part, int32_t token) {
    const Area& area = buffer.is_copied ? part.copied : part.shared;
    return area.data + area.max_tokens * buffer.offset + token * buffer.stride;
  }
  Share tile_tokens(int32_t count, int member) const;
  Share own_tokens(int32_t count, int member) const;
  Share find_own_tiles(int32_t count, int member) const;
  bool is_balanced() const;
  void run_head(const Window& window, Member& member);
  void make_logits(bool are_kept, const Member& member, StageCounter& counter, Lap& lap);
  void draw_tokens(const Window& window, bool are_kept, const Member& member);
  void note_progress(const Member& member);
  void make_attention_tiles(int32_t begin, int32_t count);
  void run_plan(const Plan& plan, std::vector<StageCounter>& counters, const Window& window, Member& member);
  void run_token_stages(const Plan& plan, size_t begin, size_t end, std::vector<StageCounter>& counters,
                        const Window& window, const Member& member, Lap& lap);
  void run_token_stage(const Stage& stage, const Window& window, const Part& part, int32_t begin, int32_t end);
  void fill_rope_table(const Stage& stage, const Window& window, const Part& part, int32_t begin, int32_t end);
  void load_rows(const Stage& stage, const Window& window, const Part& part, int32_t begin, int32_t end);
  void store_rows(const Stage& stage, const Window& window, const Part& part, int32_t begin, int32_t end);
  MultiplyInput multiply_input(const Stage& stage, const Part& part) const;
  void multiply_product(const Product& product, const MultiplyInput& in, const Share& panels, float* out, size_t stride,
                        FetchQueue* fetch) const;
  void run_multiply(const Stage& stage, const Window& window, Member& member);
  FetchQueue* fetch_for(const Stage& stage, const Window& window, Member& member) const;
  void list_fetches();
  void run_attend(const Stage& stage, Member& member);
  // The next index of the member's own share, then of the shares of others; -1 at the end.
  template <typename ShareOf>
  int take(int list, const Member& member, ShareOf share_of_owner) {
    for (int i = 0; i < team_size_; ++i) {
      const int owner = (member.index + i) % team_size_;
      const Share share = share_of_owner(owner);
      std::atomic<int>& next = items_[owner].next[list];
      if (next.load(std::memory_order_relaxed) >= share.end - share.begin) continue;
      const int item = share.begin + next.fetch_add(1, std::memory_order_relaxed);
      if (item < share.end) return item;
    }
    return -1;
  }
  static KeysAhead keys_of(const AttentionTile& tile, int32_t kv_head, int32_t context);
  void attend_tile(const Stage& stage, const AttentionTile& tile, int32_t kv_head, const KeysAhead& ahead,
                   const Member& member);
  void attend_whole(const Stage& stage, int parity, const Member& member);
  void attend_split(const Stage& stage, int parity, const Member& member);
  bool is_split(const AttentionSpec& spec) const;
  static QueryTile query_tile(const Stage& stage, const Part& part, const AttentionTile& tile);
  static ContextRange context_range(const AttentionShape& shape, const AttentionTile& tile);
  void reset_states(float* states, int32_t num_rows, int32_t head_dim) const;
  void finish_rows(const Stage& stage, const Part& part, const AttentionTile& tile, int32_t kv_head,
                   const float* states) const;

  std::shared_ptr<Runtime> runtime_;
  const LinearKernels* linear_ = nullptr;
  const StepKernels* step_ = nullptr;
  KVPool kv_;
  StepLimits limits_{};
  int32_t hidden_size_ = 0;
  int32_t chunk_tokens_ = 0;  // most tokens of a chunk
  std::vector<RopeSpec> ropes_;
  std::vector<AttentionSpec> attentions_;
  Plan body_, head_;
  Sampler sampler_;
  bool is_counting_ = false;
  int64_t own_progress_ = 0;
  int64_t* progress_ = &own_progress_;  // written by member 0
  std::vector<StageCounter> body_counters_, head_counters_;  // by stage of the plan; written by member 0
  StageCounter sample_counter_;

  Mapping body_workspace_, head_workspace_, kept_rows_, acts_, split_partials_;
  std::vector<Mapping> member_memory_;
  std::vector<Member> members_;
  std::vector<AttentionTile> tiles_;  // of the current chunk
  int32_t num_tiles_ = 0;
  int32_t max_tile_tokens_ = 0;
  std::vector<Share> own_tiles_;  // by member
  bool is_private_ = false;  // each member attends to its own tiles, without barriers
  std::vector<FetchList> fetch_lists_;
  std::unique_ptr<ItemCounter[]> items_;  // by member
  DecodeArrays decode_;
  TeamControl control_;
  TeamBalance by_panels_, by_tokens_;  // the parts of members, where a chunk is shared so
  int64_t watched_since_ns_ = 0;
  int32_t watched_tokens_ = 0;  // of the chunk at hand, if it is shared by tokens
  std::vector<int64_t> waited_ns_;  // by member, before
  std::vector<TeamBalance::Work> work_;
  int team_size_ = 1;  // members of the step at hand
  Step now_{};
};

}  // namespace octavo
