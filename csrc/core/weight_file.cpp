#include "core/weight_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>

namespace octavo {
namespace {

constexpr uint64_t kPrime = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio: odd, so multiplying by it loses nothing
constexpr int kLanes = 8;
constexpr int kTurn = 29;

constexpr uint64_t mix(uint64_t sum, uint64_t word) { return std::rotl((sum ^ word) * kPrime, kTurn); }

uint64_t load_word(const std::byte* source) {
  uint64_t word;
  std::memcpy(&word, source, sizeof(word));
  return word;
}

struct Block {
  size_t begin, size;
};

Block block_at(size_t index, size_t total) {
  const size_t begin = index * kFileBlock;
  return {begin, std::min(kFileBlock, total - begin)};
}

// 0, or the error number; -1 at the end of the file.
int read_fully(int fd, uint64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) return -1;
    offset += static_cast<uint64_t>(got);
    out = out.subspan(static_cast<size_t>(got));
  }
  return 0;
}

// What the threads of one reading share. Blocks are taken one by one: a slow disk or core delays no more than its own.
struct Reading {
  const FilePart& part;
  std::byte* data;
  std::atomic<size_t> next{0};
  std::atomic<bool> has_failed{false};
  std::atomic<int> error{0};
  std::atomic<size_t> wrong_block{0};
};

void read_blocks(void* context, int) {
  Reading& reading = *static_cast<Reading*>(context);
  const size_t count = reading.part.checksums.size();
  while (!reading.has_failed.load(std::memory_order_relaxed)) {
    const size_t index = reading.next.fetch_add(1, std::memory_order_relaxed);
    if (index >= count) return;
    const Block block = block_at(index, reading.part.bytes);
    const std::span out(reading.data + block.begin, block.size);
    const int error = read_fully(reading.part.fd, reading.part.offset + block.begin, out);
    if (error == 0 && block_checksum(out) == reading.part.checksums[index]) continue;
    if (!reading.has_failed.exchange(true)) {
      reading.error = error;
      reading.wrong_block = index;
    }
  }
}

Status check_part(const FilePart& part) {
  if (part.bytes == 0 || part.bytes % kCacheLine != 0 || num_file_blocks(part.bytes) != part.checksums.size()) {
    return Status::invalid(std::to_string(part.checksums.size()) + " checksums do not fit " +
                           std::to_string(part.bytes) + " bytes");
  }
  return {};
}

}  // namespace

uint64_t block_checksum(std::span<const std::byte> block) {
  uint64_t lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = kPrime * static_cast<uint64_t>(i + 1);
  const std::byte* at = block.data();
  size_t left = block.size();
  for (; left >= kLanes * sizeof(uint64_t); left -= kLanes * sizeof(uint64_t)) {
    for (int i = 0; i < kLanes; ++i, at += sizeof(uint64_t)) lanes[i] = mix(lanes[i], load_word(at));
  }
  uint64_t sum = block.size();
  for (const uint64_t lane : lanes) sum = mix(sum, lane);
  for (; left >= sizeof(uint64_t); left -= sizeof(uint64_t), at += sizeof(uint64_t)) sum = mix(sum, load_word(at));
  return sum ^ sum >> 32;
}

void checksum_blocks(std::span<const std::byte> data, ThreadPool& pool, std::span<uint64_t> out) {
  struct Job {
    std::span<const std::byte> data;
    std::span<uint64_t> out;
    int num_members;
  } job{data, out, pool.size()};
  pool.run(
      [](void* context, int member) {
        const Job& job = *static_cast<const Job*>(context);
        const Share share = share_of(static_cast<int>(job.out.size()), member, job.num_members);
        for (int i = share.begin; i < share.end; ++i) {
          const Block block = block_at(static_cast<size_t>(i), job.data.size());
          job.out[i] = block_checksum(job.data.subspan(block.begin, block.size));
        }
      },
      &job);
}

Status read_part(const FilePart& part, ThreadPool& pool, Mapping* out) {
  out->reset();
  if (Status status = check_part(part); !status.ok()) return status;
  Mapping memory;
  if (Status status = Mapping::create(part.bytes, &memory); !status.ok()) return status;
  Reading reading{part, memory.data()};
  pool.run(&read_blocks, &reading);
  if (reading.has_failed) {
    const uint64_t at = part.offset + reading.wrong_block * kFileBlock;
    const std::string where = " in the 1 MiB from byte " + std::to_string(at) + " on";
    if (reading.error > 0) return Status::invalid(std::string(std::strerror(reading.error)) + where);
    if (reading.error < 0) return Status::invalid("the file ends" + where);
    return Status::invalid("the checksum is wrong" + where);
  }
  *out = std::move(memory);
  return {};
}

Status map_part(const FilePart& part, Mapping* out) {
  out->reset();
  if (Status status = check_part(part); !status.ok()) return status;
  // A page past the end would be a fault in the middle of a step.
  struct stat facts;
  if (fstat(part.fd, &facts) != 0) return Status::invalid(std::strerror(errno));
  if (static_cast<uint64_t>(facts.st_size) < part.offset + part.bytes) return Status::invalid("the file is too short");
  return Mapping::map_file(part.fd, part.offset, part.bytes, out);
}

}  // namespace octavo
