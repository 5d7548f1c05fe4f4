// Whether a step of few tokens runs on all threads or on the caller's alone.
//
// Where other work wants one of the cores for good, threads that wait for each other at every operation advance at the pace
// of the one that is not running: two threads are then slower than one. It can show in what they sleep at barriers, but so
// does work that comes and goes, as that of a server's own front end, and beside that the team is faster still. So what
// they sleep only leads to a trial: a few steps alone, compared with those of the team before them. The better of
// both is kept for a while, longer each time that nothing has changed.
#pragma once

#include <algorithm>
#include <cstdint>

namespace octavo {

class TeamControl {
 public:
  // Steps of a call, all of so many tokens. `slept_ns` is what its members slept at barriers, all together.
  struct Run {
    int32_t num_tokens;
    int64_t num_steps;
    int64_t elapsed_ns;
    int64_t slept_ns;
  };

  // With `many_tokens` or more a step is always the team's: its members rarely wait for each other, so it is never slower,
  // and says nothing of how it would fare with fewer.
  TeamControl(int num_threads, int32_t many_tokens) : num_threads_(num_threads), many_tokens_(many_tokens) {}

  // Whether steps of so many tokens run on one thread from now on. Times are of a monotonic clock, in nanoseconds.
  bool is_alone(int64_t now_ns, int32_t num_tokens) {
    if (num_threads_ == 1) return true;
    if (num_tokens >= many_tokens_) return false;
    if (mode_ == Mode::kTrial && num_tokens != team_.num_tokens) begin(Mode::kTeam);  // nothing to compare with
    if (mode_ == Mode::kAlone && now_ns >= until_ns_) begin(Mode::kTeam);
    return mode_ != Mode::kTeam;
  }

  // Steps ended that ran as is_alone said.
  void observe(int64_t now_ns, const Run& run) {
    if (num_threads_ == 1 || run.num_tokens >= many_tokens_ || mode_ == Mode::kAlone) return;
    if (run.elapsed_ns < kShortStepNs * run.num_steps) return;
    Run& sum = mode_ == Mode::kTeam ? team_ : alone_;
    if (sum.num_tokens != run.num_tokens) sum = {run.num_tokens, 0, 0, 0};
    sum.num_steps += run.num_steps;
    sum.elapsed_ns += run.elapsed_ns;
    sum.slept_ns += run.slept_ns;
    if (sum.num_steps < (mode_ == Mode::kTeam ? kTeamSteps : kTrialSteps)) return;
    if (mode_ == Mode::kTeam) {
      judge_team(now_ns);
    } else {
      judge_trial(now_ns);
    }
  }

 private:
  enum class Mode { kTeam, kTrial, kAlone };

  void begin(Mode mode) {
    mode_ = mode;
    if (mode == Mode::kTeam) team_ = {};
    if (mode == Mode::kTrial) alone_ = {team_.num_tokens, 0, 0, 0};
  }

  void judge_team(int64_t now_ns) {
    const double most = kMaxSlept * static_cast<double>(team_.elapsed_ns) * (num_threads_ - 1);
    const bool is_stalled = static_cast<double>(team_.slept_ns) > most;
    num_smooth_ = is_stalled ? 0 : num_smooth_ + 1;
    if (num_smooth_ >= kSmoothRounds) pause_ns_ = kFirstPauseNs;
    begin(is_stalled && now_ns >= until_ns_ ? Mode::kTrial : Mode::kTeam);
  }

  void judge_trial(int64_t now_ns) {
    const double alone = static_cast<double>(alone_.elapsed_ns) / static_cast<double>(alone_.num_steps);
    const double team = static_cast<double>(team_.elapsed_ns) / static_cast<double>(team_.num_steps);
    begin(alone < kMinGain * team ? Mode::kAlone : Mode::kTeam);
    until_ns_ = now_ns + pause_ns_;
    pause_ns_ = std::min(2 * pause_ns_, kLastPauseNs);
  }

  static constexpr int64_t kShortStepNs = 200'000;  // a single wake-up is a large part of less
  static constexpr double kMaxSlept = 0.4;
  static constexpr double kMinGain = 0.85;
  static constexpr int64_t kTeamSteps = 8;
  static constexpr int64_t kTrialSteps = 2;
  static constexpr int kSmoothRounds = 16;
  static constexpr int64_t kFirstPauseNs = 250'000'000;
  static constexpr int64_t kLastPauseNs = 4'000'000'000;

  const int num_threads_;
  const int32_t many_tokens_;
  Mode mode_ = Mode::kTeam;
  Run team_{}, alone_{};
  int num_smooth_ = 0;
  int64_t pause_ns_ = kFirstPauseNs;
  int64_t until_ns_ = 0;  // alone, or no trial, until then
};

}  // namespace octavo
