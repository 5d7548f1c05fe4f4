#include "core/thread_pool.h"

#include "core/clock.h"
#include "core/float_mode.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace octavo {
namespace {

// About 35 us: longer than any op waits when the cores are ours, short enough not to starve others when they are not.
constexpr int kSpins = 2000;

inline void relax() {
#if defined(__SSE2__)
  _mm_pause();
#endif
}

// Whether `value` became other than `old` while it was watched.
bool spin(const std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return true;
    relax();
  }
  return false;
}

// Sets `value` and wakes who sleeps on it. seq_cst: notify_all looks first whether anyone sleeps, and after a mere release
// store a processor may look before the store is seen by one who is about to, who then sleeps for good.
void set_and_wake(std::atomic<uint32_t>& value, uint32_t next) {
  value.store(next, std::memory_order_seq_cst);
  value.notify_all();
}

}  // namespace

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(num_threads), waits_(std::make_unique<Wait[]>(num_threads)), team_size_(num_threads) {
  threads_.reserve(num_threads - 1);
  for (int member = 1; member < num_threads; ++member) {
    threads_.emplace_back([this, member] { work(member); });
  }
}

ThreadPool::~ThreadPool() {
  is_stopping_.store(true, std::memory_order_relaxed);
  set_and_wake(epoch_, epoch_.load(std::memory_order_relaxed) + 1);
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(Task task, void* context, bool is_alone) {
  const std::lock_guard lock(turn_);
  const FlushSubnormals mode;
  task_ = task;
  context_ = context;
  team_size_ = is_alone ? 1 : num_threads_;
  if (team_size_ > 1) set_and_wake(epoch_, epoch_.load(std::memory_order_relaxed) + 1);
  task(context, 0);
  barrier(0);
}

void ThreadPool::barrier(int member) {
  if (team_size_ == 1) return;
  const uint32_t generation = generation_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == team_size_) {
    arrived_.store(0, std::memory_order_relaxed);
    set_and_wake(generation_, generation + 1);
    return;
  }
  const int64_t begin = now_ns();
  wait_for(generation);
  std::atomic<int64_t>& total_ns = waits_[member].total_ns;  // written by this thread alone
  total_ns.store(total_ns.load(std::memory_order_relaxed) + now_ns() - begin, std::memory_order_relaxed);
}

void ThreadPool::wait_for(uint32_t generation) {
  if (spin(generation_, generation)) return;
  const int64_t asleep = now_ns();
  generation_.wait(generation, std::memory_order_acquire);
  slept_ns_.fetch_add(now_ns() - asleep, std::memory_order_relaxed);
}

void ThreadPool::work(int member) {
  const FlushSubnormals mode;
  for (uint32_t seen = 0;; ++seen) {
    if (!spin(epoch_, seen)) epoch_.wait(seen, std::memory_order_acquire);
    if (is_stopping_.load(std::memory_order_relaxed)) return;
    task_(context_, member);
    barrier(member);
  }
}

}  // namespace octavo
