// All members run each task, barriers hold, callers take turns, and subnormals are flushed inside only.
#include <atomic>
#include <thread>
#include <vector>

#include "check.h"
#include "core/team_control.h"
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

void test_caller_alone() {
  ThreadPool pool(3);
  struct Seen {
    ThreadPool& pool;
    std::atomic<int> members{0};
  } seen{pool};
  const auto task = [](void* context, int member) {
    Seen& s = *static_cast<Seen*>(context);
    s.pool.barrier();
    s.members += 1 << member;
  };
  pool.run(task, &seen, true);
  CHECK(seen.members == 1);
  pool.run(task, &seen);
  CHECK(seen.members == 1 + 7);
}

constexpr int64_t kMs = 1'000'000;

void test_team_is_left_alone_while_it_stalls() {
  TeamControl control(2);
  control.observe(0, 4 * kMs, 3 * kMs);
  CHECK(!control.is_alone(0));  // once is chance
  control.observe(4 * kMs, 4 * kMs, 3 * kMs);
  CHECK(control.is_alone(5 * kMs) && control.is_alone(253 * kMs) && !control.is_alone(255 * kMs));
  // A try that stalls again is paid with a longer pause.
  control.observe(260 * kMs, 4 * kMs, 3 * kMs);
  CHECK(control.is_alone(755 * kMs) && !control.is_alone(765 * kMs));
  // Smooth steps end it; after many of them the next pause is a short one.
  int64_t now = 800 * kMs;
  for (int i = 0; i < 20; ++i, now += 4 * kMs) control.observe(now, 4 * kMs, kMs / 2);
  CHECK(!control.is_alone(now));
  for (int i = 0; i < 2; ++i) control.observe(now, 4 * kMs, 3 * kMs);
  CHECK(control.is_alone(now + 249 * kMs) && !control.is_alone(now + 251 * kMs));
}

void test_short_steps_and_single_threads_decide_nothing() {
  TeamControl many(2), one(1);
  for (int i = 0; i < 10; ++i) {
    many.observe(i, 50'000, 49'000);
    one.observe(i, 4 * kMs, 4 * kMs);
  }
  CHECK(!many.is_alone(10) && !one.is_alone(10));
}

}  // namespace

int main() {
  test_caller_alone();
  test_team_is_left_alone_while_it_stalls();
  test_short_steps_and_single_threads_decide_nothing();
  test_barriers(1, 10, 3);
  test_barriers(2, 50, 100);
  test_barriers(5, 5, 20);
  test_two_callers();
  test_shares();
  test_subnormals_are_flushed_inside_only();
  return octavo_test::check_result();
}
