#include "probe/ceilings.h"

#include <time.h>

#include <algorithm>
#include <chrono>

namespace octavo {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMinRounds = 2;
// Long enough that waking the threads does not count, short enough that some rounds meet no other work.
constexpr double kRoundSeconds = 0.002;
// Of a peak loop: some microseconds, some tens of milliseconds.
constexpr int64_t kFewRounds = 512, kManyRounds = int64_t{1} << 22;
constexpr size_t kPage = 4096;
constexpr size_t kFillBytes = 32 * kHugePage;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

template <typename Job>
double seconds_of(ThreadPool& pool, ThreadPool::Task task, Job& job) {
  const Clock::time_point start = Clock::now();
  pool.run(task, &job);
  return seconds_since(start);
}

// The shortest of the rounds that start before `seconds` are over; of slow ones kMinRounds within four times that.
template <typename Job>
double best_round(ThreadPool& pool, ThreadPool::Task task, Job& job, double seconds) {
  const Clock::time_point start = Clock::now();
  double best = seconds_of(pool, task, job);
  double elapsed = seconds_since(start);
  for (int round = 1; elapsed < seconds || (round < kMinRounds && elapsed < 4 * seconds); ++round) {
    best = std::min(best, seconds_of(pool, task, job));
    elapsed = seconds_since(start);
  }
  return std::max(best, 1e-9);
}

// Repetitions of a job that took `once` that fill a round.
int64_t repetitions(double once) { return static_cast<int64_t>(kRoundSeconds / std::max(once, 1e-9)) + 1; }

struct FillJob {
  std::span<std::byte> memory;
  int num_members;
};

// Writing to a page makes it real; until then all of them are one page of zeros, which the cache holds.
void fill_share(void* context, int member) {
  const FillJob& job = *static_cast<const FillJob*>(context);
  const Share huge_pages = share_of(static_cast<int>(round_up(job.memory.size(), kHugePage) / kHugePage), member,
                                    job.num_members);
  const size_t end = std::min(huge_pages.end * kHugePage, job.memory.size());
  for (size_t at = huge_pages.begin * kHugePage; at < end; at += kPage) job.memory[at] = std::byte{1};
}

struct ReadJob {
  const PeakKernels& kernels;
  std::span<const std::span<const std::byte>> parts;
  int num_members;
  int64_t passes;
  std::vector<uint64_t> results;  // by member: what was read must be used
};

void read_share(void* context, int member) {
  ReadJob& job = *static_cast<ReadJob*>(context);
  uint64_t mixed = 0;
  for (int64_t pass = 0; pass < job.passes; ++pass) {
    for (const std::span<const std::byte> part : job.parts) {
      const Share steps = share_of(static_cast<int>(part.size() / kReadStep), member, job.num_members);
      mixed += job.kernels.read(part.data() + steps.begin * kReadStep, (steps.end - steps.begin) * kReadStep);
    }
  }
  job.results[member] = mixed;
}

double thread_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct PeakJob {
  const PeakLoop& loop;
  int64_t rounds;
  std::vector<double> cpu_seconds;  // by member
};

void run_loop(void* context, int member) {
  PeakJob& job = *static_cast<PeakJob*>(context);
  const double start = thread_cpu_seconds();
  job.loop.run(job.rounds);
  job.cpu_seconds[member] = std::max(thread_cpu_seconds() - start, 1e-9);
}

}  // namespace

Status ReadBuffer::create(size_t bytes, ThreadPool& pool, double seconds, ReadBuffer* out) {
  if (bytes < kReadStep) return Status::invalid("a buffer to read has at least " + std::to_string(kReadStep) + " bytes");
  if (Status status = Mapping::create(bytes, &out->memory_); !status.ok()) return status;
  const Clock::time_point start = Clock::now();
  out->size_ = 0;
  do {
    const size_t part = std::min(bytes - out->size_, kFillBytes);
    FillJob job{{out->memory_.data() + out->size_, part}, pool.size()};
    pool.run(fill_share, &job);
    out->size_ += part;
  } while (out->size_ < bytes && seconds_since(start) < seconds);
  return {};
}

double measure_read(const PeakKernels& kernels, ThreadPool& pool, std::span<const std::span<const std::byte>> parts,
                    double seconds) {
  size_t bytes = 0;
  for (const std::span<const std::byte> part : parts) bytes += part.size() / kReadStep * kReadStep;
  if (bytes == 0) return 0.0;
  ReadJob job{kernels, parts, pool.size(), 1, std::vector<uint64_t>(pool.size())};
  const double once = seconds_of(pool, read_share, job);
  job.passes = repetitions(once);
  double best = best_round(pool, read_share, job, seconds);
  if (job.passes == 1) best = std::min(best, once);
  return static_cast<double>(bytes) * static_cast<double>(job.passes) / best;
}

std::vector<std::span<const std::byte>> matrix_parts(const WeightStore& weights, size_t max_bytes) {
  std::vector<std::span<const std::byte>> parts;
  for (int32_t id = 0; id < weights.num_matrices() && max_bytes > 0; ++id) {
    const PackedMatrix& matrix = weights.matrix(id);
    const size_t bytes = std::min(matrix.num_panels * matrix.panel_bytes, max_bytes);
    parts.emplace_back(matrix.data, bytes);
    max_bytes -= bytes;
  }
  return parts;
}

double measure_peak(const PeakLoop& loop, Features available, ThreadPool& pool, double seconds) {
  if (loop.run == nullptr || !is_subset(loop.needs, available)) return 0.0;
  PeakJob job{loop, kFewRounds, std::vector<double>(pool.size())};
  do {
    job.rounds *= 2;
    pool.run(run_loop, &job);
  } while (job.cpu_seconds[0] < kRoundSeconds / 2 && job.rounds < kManyRounds);
  std::vector<double> rates;
  const Clock::time_point start = Clock::now();
  do {
    pool.run(run_loop, &job);
    double rate = 0.0;
    for (const double cpu : job.cpu_seconds) rate += static_cast<double>(job.rounds) / cpu;
    rates.push_back(rate);
  } while (seconds_since(start) < seconds);
  const auto upper_quartile = rates.begin() + static_cast<ptrdiff_t>(rates.size()) * 3 / 4;
  std::nth_element(rates.begin(), upper_quartile, rates.end());
  return static_cast<double>(loop.macs_per_round) * *upper_quartile;
}

}  // namespace octavo
