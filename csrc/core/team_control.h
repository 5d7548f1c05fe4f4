// Whether a step runs on all threads or on the caller's alone.
//
// Where other work wants one of the cores, threads that wait for each other at every operation advance at the pace of the
// one that is not running: two threads are then far slower than one. It shows in what they sleep at barriers. After
// two such steps in a row the others are left alone for a while, longer each time that a try shows nothing better.
#pragma once

#include <algorithm>
#include <cstdint>

namespace octavo {

class TeamControl {
 public:
  explicit TeamControl(int num_threads) : num_threads_(num_threads) {}

  // Whether the step that begins now runs on one thread. Times are of a monotonic clock, in nanoseconds.
  bool is_alone(int64_t now_ns) const { return now_ns < until_ns_; }

  // A step of the whole team that ended now took so long, of which its members slept so much at barriers.
  void observe(int64_t now_ns, int64_t step_ns, int64_t slept_ns) {
    if (num_threads_ == 1 || step_ns < kShortStepNs) return;
    const bool is_stalled = static_cast<double>(slept_ns) > kMaxSlept * static_cast<double>(step_ns) * (num_threads_ - 1);
    if (!is_stalled) {
      num_stalled_ = 0;
      if (++num_smooth_ >= kSmoothSteps) pause_ns_ = kFirstPauseNs;
      return;
    }
    num_smooth_ = 0;
    if (++num_stalled_ < kStalledSteps) return;
    num_stalled_ = kStalledSteps - 1;  // the first step after the pause decides at once
    until_ns_ = now_ns + pause_ns_;
    pause_ns_ = std::min(2 * pause_ns_, kLastPauseNs);
  }

 private:
  static constexpr int64_t kShortStepNs = 200'000;  // a single wake-up is a large part of less
  static constexpr double kMaxSlept = 0.4;
  static constexpr int kStalledSteps = 2;
  static constexpr int kSmoothSteps = 16;
  static constexpr int64_t kFirstPauseNs = 250'000'000;
  static constexpr int64_t kLastPauseNs = 4'000'000'000;

  const int num_threads_;
  int num_stalled_ = 0;
  int num_smooth_ = 0;
  int64_t pause_ns_ = kFirstPauseNs;
  int64_t until_ns_ = 0;
};

}  // namespace octavo
