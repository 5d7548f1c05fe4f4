// Packed weights read back from a file: the same bytes, and nothing from a file that is short or changed.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "core/weight_file.h"
#include "core/weight_store.h"
#include "weights.h"

namespace {

using namespace octavo;
using namespace octavo_test;

constexpr size_t kOffset = 4096;

std::vector<std::byte> random_bytes(size_t size) {
  std::mt19937_64 random(size);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// A file that is gone when it is closed.
class TempFile {
 public:
  explicit TempFile(std::span<const std::byte> data) : file_(std::tmpfile()) {
    const std::vector<std::byte> before(kOffset);
    std::fwrite(before.data(), 1, before.size(), file_);
    std::fwrite(data.data(), 1, data.size(), file_);
    std::fflush(file_);
  }
  ~TempFile() { std::fclose(file_); }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;

  int fd() const { return fileno(file_); }
  void cut(size_t size) { CHECK(ftruncate(fd(), static_cast<off_t>(kOffset + size)) == 0); }
  void flip(size_t at) {
    unsigned char byte = 0;
    CHECK(pread(fd(), &byte, 1, static_cast<off_t>(kOffset + at)) == 1);
    byte ^= 0x10;
    CHECK(pwrite(fd(), &byte, 1, static_cast<off_t>(kOffset + at)) == 1);
  }

 private:
  std::FILE* file_;
};

void test_a_checksum_sees_every_byte_and_their_order() {
  std::vector<std::byte> data = random_bytes(64 * 5 + 24);
  const uint64_t whole = block_checksum(data);
  for (std::byte& byte : data) {
    for (int bit = 0; bit < 8; ++bit) {
      byte ^= static_cast<std::byte>(1 << bit);
      CHECK(block_checksum(data) != whole);
      byte ^= static_cast<std::byte>(1 << bit);
    }
  }
  CHECK(block_checksum(data) == whole);
  CHECK(block_checksum(std::span(data).first(64 * 5)) != whole);
  std::swap_ranges(data.begin(), data.begin() + 64, data.begin() + 64);
  CHECK(block_checksum(data) != whole);
  const std::vector<std::byte> zeros(128);
  CHECK(block_checksum(zeros) != block_checksum(std::span(zeros).first(64)));
}

// Part of the file format: files that exist have it.
void test_the_checksum_stays_what_it_is() {
  std::vector<std::byte> data(200);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i);
  CHECK(block_checksum(data) == 0x371fac0637720115u);
}

void test_reading_gives_the_bytes_back() {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    for (const size_t size : {size_t{64}, kFileBlock, 3 * kFileBlock + 640}) {
      const std::vector<std::byte> data = random_bytes(size);
      std::vector<uint64_t> sums(num_file_blocks(size));
      checksum_blocks(data, pool, sums);
      const TempFile file(data);
      const FilePart part{file.fd(), kOffset, size, sums};
      Mapping read, mapped;
      CHECK(read_part(part, pool, &read).ok());
      CHECK(read.size() == size && std::memcmp(read.data(), data.data(), size) == 0);
      CHECK(map_part(part, &mapped).ok());
      CHECK(mapped.size() == size && std::memcmp(mapped.data(), data.data(), size) == 0);
    }
  }
}

void test_a_short_or_changed_file_gives_nothing() {
  ThreadPool pool(2);
  const size_t size = 2 * kFileBlock + 64;
  const std::vector<std::byte> data = random_bytes(size);
  std::vector<uint64_t> sums(num_file_blocks(size));
  checksum_blocks(data, pool, sums);
  Mapping memory;
  for (const size_t at : {size_t{0}, kFileBlock - 1, kFileBlock, size - 1}) {
    TempFile file(data);
    file.flip(at);
    const Status status = read_part({file.fd(), kOffset, size, sums}, pool, &memory);
    CHECK(!status.ok() && status.message().find("checksum") != std::string::npos);
    CHECK(memory.data() == nullptr);
  }
  for (const size_t left : {size_t{0}, size_t{1}, kFileBlock, size - 1}) {
    TempFile file(data);
    file.cut(left);
    const FilePart part{file.fd(), kOffset, size, sums};
    CHECK(!read_part(part, pool, &memory).ok() && memory.data() == nullptr);
    CHECK(!map_part(part, &memory).ok() && memory.data() == nullptr);
  }
  const TempFile file(data);
  CHECK(!read_part({file.fd(), kOffset, size - 64, sums}, pool, &memory).ok());  // a checksum too many
  CHECK(!read_part({file.fd(), kOffset, 0, {}}, pool, &memory).ok());
  CHECK(!read_part({-1, kOffset, size, sums}, pool, &memory).ok());
}

void test_adopted_weights_are_those_that_were_packed() {
  ThreadPool pool(2);
  const int32_t rows = 40, cols = 96;
  std::vector<float> values(static_cast<size_t>(rows) * cols);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const std::span source = std::as_bytes(std::span(values));
  WeightStore packing, adopting;
  int32_t id = -1, region = -1;
  CHECK(packing.add_matrix(WeightFormat::F32, rows, cols, source, pool, &id).ok());
  Mapping packed;
  CHECK(WeightStore::pack(WeightFormat::F32, rows, cols, source, pool, &packed).ok());
  const size_t bytes = packed.size();
  adopting.add_region(std::move(packed), &region);
  CHECK(adopting.used_bytes() == bytes);
  CHECK(adopting.adopt_matrix(WeightFormat::F32, rows, cols, region, 0, &id).ok() && id == 0);
  const PackedMatrix &first = packing.matrix(0), &second = adopting.matrix(0);
  CHECK(first.num_panels == second.num_panels && first.panel_bytes == second.panel_bytes);
  CHECK(std::memcmp(first.data, second.data, bytes) == 0);
  CHECK(adopting.adopt_vector(16, region, 64, &id).ok() && id == 0);
  CHECK(std::memcmp(adopting.vector(0).data, first.data + 64, 64) == 0);

  CHECK(!adopting.adopt_matrix(WeightFormat::F32, rows, cols, region, 64, &id).ok());
  CHECK(!adopting.adopt_matrix(WeightFormat::F32, rows, cols, 1, 0, &id).ok());
  CHECK(!adopting.adopt_matrix(WeightFormat::F32, 1 << 30, 1 << 30, region, 0, &id).ok());
  CHECK(!adopting.adopt_matrix(static_cast<WeightFormat>(99), rows, cols, region, 0, &id).ok());
  CHECK(!adopting.adopt_vector(16, region, 4, &id).ok());
  CHECK(!adopting.adopt_vector(16, region, bytes, &id).ok());
  CHECK(!adopting.adopt_vector(16, region, size_t{0} - 64, &id).ok());
  CHECK(!adopting.adopt_vector(0, region, 0, &id).ok());
}

}  // namespace

int main() {
  test_a_checksum_sees_every_byte_and_their_order();
  test_the_checksum_stays_what_it_is();
  test_reading_gives_the_bytes_back();
  test_a_short_or_changed_file_gives_nothing();
  test_adopted_weights_are_those_that_were_packed();
  return octavo_test::check_result();
}
