// All members run each task, barriers hold, callers take turns, and subnormals are flushed inside only.
#include <atomic>
#include <thread>
#include <vector>

#include "check.h"
#include "core/thread_pool.h"

using namespace octavo;

namespace {

struct Relay {
  ThreadPool& pool;
  std::vector<int> values;
  int rounds;
  std::atomic<int> errors{0};
};

// Every round each member writes its own cell and then reads all others: without a barrier someone reads a stale one.
void relay(void* context, int member) {
  Relay& r = *static_cast<Relay*>(context);
  for (int round = 1; round <= r.rounds; ++round) {
    r.values[member] = round;
    r.pool.barrier();
    for (int value : r.values) r.errors += value != round;
    r.pool.barrier();
  }
}

void test_barriers(int num_threads, int num_runs, int rounds) {
  ThreadPool pool(num_threads);
  CHECK(pool.size() == num_threads);
  for (int run = 0; run < num_runs; ++run) {
    Relay r{pool, std::vector<int>(num_threads), rounds};
    pool.run(relay, &r);
    CHECK(r.errors == 0);
    for (int value : r.values) CHECK(value == rounds);
  }
}

void test_two_callers() {
  ThreadPool pool(2);
  std::atomic<int> inside{0}, overlaps{0}, calls{0};
  struct Counters {
    std::atomic<int>&inside, &overlaps, &calls;
  } counters{inside, overlaps, calls};
  const auto caller = [&] {
    for (int i = 0; i < 200; ++i) {
      pool.run(
          [](void* context, int member) {
            Counters& c = *static_cast<Counters*>(context);
            if (member != 0) return;
            c.overlaps += c.inside.fetch_add(1) != 0;
            ++c.calls;
            c.inside.fetch_sub(1);
          },
          &counters);
    }
  };
  std::thread other(caller);
  caller();
  other.join();
  CHECK(overlaps == 0);
  CHECK(calls == 400);
}

void test_shares() {
  for (int count : {0, 1, 2, 7, 64}) {
    for (int members : {1, 2, 3, 8}) {
      int next = 0;
      for (int m = 0; m < members; ++m) {
        const Share share = share_of(count, m, members);
        CHECK(share.begin == next);
        CHECK(share.end - share.begin <= (count + members - 1) / members);
        next = share.end;
      }
      CHECK(next == count);
    }
  }
}

volatile float tiny = 1e-38f;

void test_subnormals_are_flushed_inside_only() {
  ThreadPool pool(2);
  std::atomic<int> flushed{0};
  CHECK(tiny * 0.01f != 0.0f);
  pool.run([](void* context, int) { *static_cast<std::atomic<int>*>(context) += tiny * 0.01f == 0.0f; }, &flushed);
#if defined(__SSE__)
  CHECK(flushed == 2);
#endif
  CHECK(tiny * 0.01f != 0.0f);
}

}  // namespace

int main() {
  test_barriers(1, 10, 3);
  test_barriers(2, 50, 100);
  test_barriers(5, 5, 20);
  test_two_callers();
  test_shares();
  test_subnormals_are_flushed_inside_only();
  return octavo_test::check_result();
}
