// How much of a step's work each member of the team takes.
//
// Cores are not alike: some are made slower than others, some share their units with the work of others. Members that
// take equal parts advance at the pace of the slowest. So parts follow what each did lately while it did not wait.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "core/thread_pool.h"

namespace octavo {

class TeamBalance {
 public:
  // What was seen counts for about memory_ns, and is forgotten when nothing was seen for eight times as long. Parts
  // change when one is off by this much of itself.
  TeamBalance(int num_members, int64_t memory_ns, double tolerance)
      : memory_ns_(memory_ns), tolerance_(tolerance), rates_(num_members, 1.0 / num_members), begins_(num_members + 1) {
    set_parts();
  }

  // Member i takes the fractions from begin_of(i) to begin_of(i + 1) of what there is.
  double begin_of(int member) const { return begins_[member]; }
  double part_of(int member) const { return begins_[member + 1] - begins_[member]; }
  Share share_of(int count, int member) const {
    return {static_cast<int>(std::lround(count * begins_[member])),
            static_cast<int>(std::lround(count * begins_[member + 1]))};
  }

  // What a member did, in any unit, and how long it waited meanwhile.
  struct Work {
    double amount;
    int64_t waited_ns;
  };
  // Parts stay as they are until the next update().
  void observe(int64_t now_ns, int64_t elapsed_ns, std::span<const Work> members) {
    double sum = 0.0;
    const auto rate_of = [&](const Work& work) {
      const int64_t busy_ns = std::max(elapsed_ns - work.waited_ns, elapsed_ns / 20 + 1);
      return work.amount / static_cast<double>(busy_ns);
    };
    for (const Work& work : members) sum += rate_of(work);
    if (!(sum > 0.0)) return;
    const double weight = static_cast<double>(elapsed_ns) / static_cast<double>(elapsed_ns + memory_ns_);
    for (size_t i = 0; i < members.size(); ++i) rates_[i] += weight * (rate_of(members[i]) / sum - rates_[i]);
    last_ns_ = now_ns;
  }

  // Not while members read their parts.
  void update(int64_t now_ns) {
    const double equal = 1.0 / static_cast<double>(rates_.size());
    if (now_ns - last_ns_ > 8 * memory_ns_) std::fill(rates_.begin(), rates_.end(), equal);
    double most = 0.0;
    for (size_t i = 0; i < rates_.size(); ++i) {
      most = std::max(most, std::abs(rates_[i] / part_of(static_cast<int>(i)) - 1.0));
    }
    if (most > tolerance_) set_parts();
  }

  // Sets the parts, in any unit, until something else is seen.
  void reset(std::span<const double> parts) {
    double sum = 0.0;
    for (const double part : parts) sum += part;
    for (size_t i = 0; i < rates_.size(); ++i) rates_[i] = parts[i] / sum;
    last_ns_ = std::numeric_limits<int64_t>::max();
    set_parts();
  }

 private:
  // A member with next to nothing to do would never be seen to become faster.
  void set_parts() {
    const double least = kLeastPart / static_cast<double>(rates_.size());
    double sum = 0.0, before = 0.0;
    for (const double rate : rates_) sum += std::max(rate, least);
    for (size_t i = 0; i < rates_.size(); ++i) {
      begins_[i] = before / sum;
      before += std::max(rates_[i], least);
    }
    begins_.back() = 1.0;
  }

  static constexpr double kLeastPart = 0.2;  // of an equal part

  const int64_t memory_ns_;
  const double tolerance_;
  int64_t last_ns_ = 0;
  std::vector<double> rates_;   // of all members together
  std::vector<double> begins_;  // [members + 1]
};

}  // namespace octavo
