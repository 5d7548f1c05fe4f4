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

// Lets `num_steps` steps of `num_tokens` tokens pass, of so long each on the team, of which it sleeps a share, or alone.
struct Steps {
  TeamControl control{2, 16};
  int64_t now = 0;
  int num_alone = 0;

  void run(int num_steps, int64_t team_ns, double slept, int64_t alone_ns, int32_t num_tokens = 1) {
    num_alone = 0;
    for (int i = 0; i < num_steps; ++i) {
      const bool is_alone = control.is_alone(now, num_tokens);
      const int64_t elapsed = is_alone ? alone_ns : team_ns;
      now += elapsed;
      num_alone += is_alone;
      const double slept_ns = is_alone ? 0.0 : slept * static_cast<double>(team_ns);
      control.observe(now, {num_tokens, 1, elapsed, static_cast<int64_t>(slept_ns)});
    }
  }
};

void test_team_that_stalls_makes_way_for_one_thread_that_is_faster() {
  Steps steps;
  steps.run(8, 10 * kMs, 0.6, 6 * kMs);
  CHECK(steps.num_alone == 0);
  steps.run(500, 10 * kMs, 0.6, 6 * kMs);
  CHECK(steps.num_alone > 440);
  // Undisturbed again, it is a team again within a pause, and for good.
  steps.run(2000, 3 * kMs, 0.01, 6 * kMs);
  steps.run(100, 3 * kMs, 0.01, 6 * kMs);
  CHECK(steps.num_alone == 0);
}

void test_team_that_sleeps_but_is_faster_goes_on() {
  Steps steps;
  steps.run(2000, 5 * kMs, 0.6, 7 * kMs);
  CHECK(steps.num_alone > 0 && steps.num_alone < 40);
}

void test_steps_of_many_tokens_are_always_the_teams() {
  Steps steps;
  steps.run(50, 10 * kMs, 0.9, 1 * kMs, 16);
  CHECK(steps.num_alone == 0);
  steps.run(50, 10 * kMs, 0.6, 6 * kMs);
  CHECK(steps.num_alone > 0);
  steps.run(50, 10 * kMs, 0.9, 1 * kMs, 16);
  CHECK(steps.num_alone == 0);
}

void test_trial_is_given_up_where_there_is_nothing_to_compare_with() {
  Steps steps;
  steps.run(9, 10 * kMs, 0.6, 6 * kMs);
  CHECK(steps.num_alone == 1);
  steps.run(3, 12 * kMs, 0.6, 8 * kMs, 2);
  CHECK(steps.num_alone == 0);
}

void test_short_steps_and_single_threads_decide_nothing() {
  Steps steps;
  steps.run(50, 50'000, 0.9, 10'000);
  CHECK(steps.num_alone == 0);
  TeamControl one(1, 8);
  CHECK(one.is_alone(0, 1) && one.is_alone(0, 100));
}

}  // namespace

int main() {
  test_caller_alone();
  test_team_that_stalls_makes_way_for_one_thread_that_is_faster();
  test_team_that_sleeps_but_is_faster_goes_on();
  test_steps_of_many_tokens_are_always_the_teams();
  test_trial_is_given_up_where_there_is_nothing_to_compare_with();
  test_short_steps_and_single_threads_decide_nothing();
  test_barriers(1, 10, 3);
  test_barriers(2, 50, 100);
  test_barriers(5, 5, 20);
  test_two_callers();
  test_shares();
  test_subnormals_are_flushed_inside_only();
  return octavo_test::check_result();
}
