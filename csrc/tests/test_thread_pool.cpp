// All members run each task, barriers hold, callers take turns, and subnormals are flushed inside only.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "check.h"
#include "core/clock.h"
#include "core/team_balance.h"
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
    r.pool.barrier(member);
    for (int value : r.values) r.errors += value != round;
    r.pool.barrier(member);
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

struct Stress {
  ThreadPool& pool;
  int num_barriers;
  std::atomic<int> passed{0};
};

// Member 0 comes to each barrier just when member 1, tired of spinning, goes to sleep.
void come_at_bedtime(void* context, int member) {
  Stress& s = *static_cast<Stress*>(context);
  int64_t delay_ns = 20'000, slept_ns = 0;
  for (int i = 0; i < s.num_barriers; ++i) {
    const int64_t begin = now_ns();
    while (member == 0 && now_ns() < begin + delay_ns) {
    }
    s.pool.barrier(member);
    if (member != 0) continue;
    const bool has_slept = s.pool.slept_ns() != slept_ns;
    slept_ns = s.pool.slept_ns();
    delay_ns = std::clamp<int64_t>(delay_ns + (has_slept ? -300 : 200), 1'000, 1'000'000);
    ++s.passed;
  }
}

// A lost one would leave both members asleep. It took a million barriers: test_thread_pool BARRIERS.
void test_no_wake_up_is_lost(int num_barriers) {
  ThreadPool pool(2);
  Stress stress{pool, num_barriers};
  std::atomic<bool> is_over{false};
  std::thread watch([&] {
    for (int ticks = 0, seen = 0; !is_over; ++ticks) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (stress.passed != seen) ticks = 0;
      seen = stress.passed;
      if (ticks < 3'000) continue;
      std::fprintf(stderr, "no progress for 30 s after %d barriers\n", seen);
      std::abort();
    }
  });
  pool.run(come_at_bedtime, &stress);
  is_over = true;
  watch.join();
  CHECK(stress.passed == num_barriers);
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
    s.pool.barrier(member);
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

// Rounds of 10 ms in which members have so many cores each, and wait for the one that is last.
struct Rounds {
  TeamBalance balance{3, 60 * kMs, 0.05};
  int64_t now = 0;

  double run(int num_rounds, const std::array<double, 3>& cores) {
    double longest = 0.0;
    for (int i = 0; i < num_rounds; ++i) {
      balance.update(now);
      std::array<double, 3> busy_ms{};
      for (int m = 0; m < 3; ++m) busy_ms[m] = 10 * balance.part_of(m) / cores[m];
      longest = *std::max_element(busy_ms.begin(), busy_ms.end());
      std::array<TeamBalance::Work, 3> work{};
      for (int m = 0; m < 3; ++m) {
        work[m] = {balance.part_of(m), static_cast<int64_t>((longest - busy_ms[m]) * kMs)};
      }
      const auto elapsed = static_cast<int64_t>(longest * kMs);
      now += elapsed;
      balance.observe(now, elapsed, work);
    }
    return longest;
  }
};

void test_parts_follow_what_cores_do() {
  Rounds rounds;
  CHECK(rounds.balance.part_of(0) == 1.0 / 3 && rounds.balance.begin_of(3) == 1.0);
  CHECK(rounds.run(100, {1, 1, 1.03}) < 3.34);
  CHECK(rounds.balance.part_of(2) < 0.334);  // too little to move anything
  // One core at a half: 10 ms of work on two and a half cores.
  CHECK(rounds.run(60, {1, 0.5, 1}) < 1.06 * 10 / 2.5);
  CHECK(rounds.run(60, {1, 1, 1}) < 1.06 * 10 / 3);
  // One that does nearly nothing keeps a part by which it is seen to come back.
  rounds.run(300, {1, 1, 0.001});
  CHECK(rounds.balance.part_of(2) > 0.05 && rounds.balance.part_of(2) < 0.08);
  CHECK(rounds.run(60, {1, 1, 1}) < 1.06 * 10 / 3);
}

void test_parts_are_forgotten() {
  Rounds rounds;
  rounds.run(60, {1, 0.5, 1});
  rounds.balance.update(rounds.now + 400 * kMs);
  CHECK(rounds.balance.part_of(1) < 0.3);
  rounds.balance.update(rounds.now + 500 * kMs);
  CHECK(std::abs(rounds.balance.part_of(1) - 1.0 / 3) < 1e-9);
}

void test_shares_of_unequal_parts() {
  TeamBalance balance(3, 60 * kMs, 0.05);
  balance.reset(std::array{5.0, 0.0, 2.0});
  for (int count : {0, 1, 2, 7, 64, 1000}) {
    int next = 0;
    for (int m = 0; m < 3; ++m) {
      const Share share = balance.share_of(count, m);
      CHECK(share.begin == next && share.end >= share.begin);
      next = share.end;
    }
    CHECK(next == count);
  }
  CHECK(balance.share_of(1000, 0).end > 650);
}

}  // namespace

int main(int argc, char** argv) {
  test_parts_follow_what_cores_do();
  test_parts_are_forgotten();
  test_shares_of_unequal_parts();
  test_caller_alone();
  test_team_that_stalls_makes_way_for_one_thread_that_is_faster();
  test_team_that_sleeps_but_is_faster_goes_on();
  test_steps_of_many_tokens_are_always_the_teams();
  test_trial_is_given_up_where_there_is_nothing_to_compare_with();
  test_short_steps_and_single_threads_decide_nothing();
  test_barriers(1, 10, 3);
  test_barriers(2, 50, 100);
  test_barriers(5, 5, 20);
  test_no_wake_up_is_lost(argc > 1 ? std::atoi(argv[1]) : 20'000);
  test_two_callers();
  test_shares();
  test_subnormals_are_flushed_inside_only();
  return octavo_test::check_result();
}
