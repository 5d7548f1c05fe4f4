// Measures what the machine allows: how fast memory is read, and how fast an ISA multiplies and adds. Other work on the
// machine can only lower a rate, so short rounds are repeated, and the better ones count.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/arena.h"
#include "core/status.h"
#include "core/thread_pool.h"
#include "core/weight_store.h"
#include "kernels/table.h"

namespace octavo {

// Memory to read, as packed weights lie in it: huge pages where the system has them, every page written once.
class ReadBuffer {
 public:
  // It has less than `bytes` where the system needs more than `seconds` to give them.
  static Status create(size_t bytes, ThreadPool& pool, double seconds, ReadBuffer* out);
  std::span<const std::byte> bytes() const { return {memory_.data(), size_}; }

 private:
  Mapping memory_;
  size_t size_ = 0;  // of the pages that are real
};

// Bytes per second at which the pool's threads read `parts`, every thread a contiguous share of each. Takes about
// `seconds`, more where two rounds take longer, at most four times that or one round. Trailing bytes of a part below
// kReadStep are left out; 0 if nothing is left.
double measure_read(const PeakKernels& kernels, ThreadPool& pool, std::span<const std::span<const std::byte>> parts,
                    double seconds);

// The packed matrices of a store as parts to read, the first `max_bytes` of them.
std::vector<std::span<const std::byte>> matrix_parts(const WeightStore& weights, size_t max_bytes);

// Multiply-accumulates per second of all the pool's threads together, measured for about `seconds`; 0 if `available`
// lacks the instruction. Counted by the threads' own CPU time: the arithmetic of a core is ours while we are on it, and
// rounds in which no thread is interrupted are rare on a busy machine. The upper quartile of the rounds, not the best:
// where a hypervisor takes time away, the kernel may take it off a round that did not lose it.
double measure_peak(const PeakLoop& loop, Features available, ThreadPool& pool, double seconds);

}  // namespace octavo
