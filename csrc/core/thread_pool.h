// A fixed team of threads that runs one task at a time, all members in step.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/arena.h"

namespace octavo {

class ThreadPool {
 public:
  // The caller of run() is member 0; num_threads - 1 threads are started.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return num_threads_; }

  // Runs task(context, member) on every member, or on the caller alone, and returns when all have ended. Callers on
  // several threads take turns.
  using Task = void (*)(void* context, int member);
  void run(Task task, void* context, bool is_alone = false);

  // Inside a task: waits until every member is here. Spins briefly, then sleeps.
  void barrier(int member);

  // Nanoseconds that a member has waited at barriers; of all members together, those asleep.
  int64_t waited_ns(int member) const { return waits_[member].total_ns.load(std::memory_order_relaxed); }
  int64_t slept_ns() const { return slept_ns_.load(std::memory_order_relaxed); }

 private:
  struct alignas(kCacheLine) Wait {
    std::atomic<int64_t> total_ns{0};
  };

  void work(int member);
  void wait_for(uint32_t generation);

  const int num_threads_;
  std::mutex turn_;
  std::vector<std::thread> threads_;
  std::unique_ptr<Wait[]> waits_;  // by member
  Task task_ = nullptr;
  void* context_ = nullptr;
  int team_size_;  // of the task at hand
  // Apart from each other: the barrier's counter is written while its generation is polled.
  alignas(kCacheLine) std::atomic<uint32_t> epoch_{0};  // one more for each task
  alignas(kCacheLine) std::atomic<int> arrived_{0};
  alignas(kCacheLine) std::atomic<uint32_t> generation_{0};
  std::atomic<int64_t> slept_ns_{0};
  std::atomic<bool> is_stopping_{false};
};

// The part [begin, end) of `count` items that belongs to a member: contiguous, sizes differ by at most one.
struct Share {
  int begin, end;
};
constexpr Share share_of(int count, int member, int num_members) {
  return {static_cast<int>(static_cast<int64_t>(count) * member / num_members),
          static_cast<int>(static_cast<int64_t>(count) * (member + 1) / num_members)};
}

}  // namespace octavo
