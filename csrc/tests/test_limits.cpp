// The limits probe: its loops run on every table, and what a step costs is counted from the recorded program.
#include <cstring>
#include <vector>

#include "check.h"
#include "cpu/dispatch.h"
#include "probe/ceilings.h"
#include "probe/work.h"

namespace {

using namespace octavo;

constexpr double kSeconds = 0.001;

void test_every_table_has_peaks() {
  ThreadPool pool(2);
  const Features available = probe_features();
  for (const KernelTable* table : supported_tables(available)) {
    const PeakKernels& peak = *table->peak;
    for (const PeakLoop* loop : {&peak.int8, &peak.f32}) {
      CHECK(std::strlen(loop->instructions) > 0);
      CHECK(measure_peak(*loop, available, pool, kSeconds) > 1e6);
    }
    const bool has_bf16 = peak.bf16.run != nullptr && is_subset(kAvx512Bf16, available);
    CHECK((measure_peak(peak.bf16, available, pool, kSeconds) > 0) == has_bf16);
    if (peak.bf16.run != nullptr) CHECK(measure_peak(peak.bf16, available & ~kAvx512Bf16, pool, kSeconds) == 0.0);
  }
}

void test_every_byte_is_read() {
  alignas(64) std::byte data[4 * kReadStep] = {};
  for (const KernelTable* table : supported_tables(probe_features())) {
    const uint64_t before = table->peak->read(data, sizeof(data));
    CHECK(before == 0);
    for (size_t at = 0; at < sizeof(data); at += 41) {
      data[at] = std::byte{1};
      CHECK(table->peak->read(data, sizeof(data)) == uint64_t{1} << 8 * (at % 8));
      data[at] = std::byte{0};
    }
  }
}

void test_buffers_are_measured() {
  for (const int num_threads : {1, 2, 3}) {
    ThreadPool pool(num_threads);
    ReadBuffer buffer;
    CHECK(!ReadBuffer::create(kReadStep - 1, pool, 1.0, &buffer).ok());
    CHECK(ReadBuffer::create(100 * kHugePage, pool, 0.0, &buffer).ok());
    CHECK(buffer.bytes().size() >= kHugePage && buffer.bytes().size() < 100 * kHugePage);
    for (const size_t bytes : {kReadStep, kHugePage - 1, 3 * kHugePage + 5}) {
      CHECK(ReadBuffer::create(bytes, pool, 60.0, &buffer).ok());
      const std::span<const std::byte> all = buffer.bytes();
      CHECK(all.size() == bytes);
      for (size_t at = 0; at < bytes; at += 4096) CHECK(all[at] == std::byte{1});
      const std::span<const std::byte> parts[] = {all.first(kReadStep), all.first(1), all};
      for (const KernelTable* table : supported_tables(probe_features())) {
        CHECK(measure_read(*table->peak, pool, parts, kSeconds) > 0.0);
        CHECK(measure_read(*table->peak, pool, {&parts[1], 1}, kSeconds) == 0.0);
      }
    }
  }
}

void test_the_work_of_a_program_is_that_of_its_matrices() {
  constexpr int32_t kHidden = 64, kKv = 32, kVocab = 40;
  ThreadPool pool(1);
  WeightStore weights;
  const std::vector<std::byte> zeros(kVocab * kHidden * sizeof(float));
  const auto add = [&](WeightFormat format, int32_t rows, size_t row_bytes) {
    int32_t id = -1;
    CHECK(weights.add_matrix(format, rows, kHidden, std::span(zeros).first(rows * row_bytes), pool, &id).ok());
    return id;
  };
  const int32_t embedding = add(WeightFormat::F32, kVocab, kHidden * sizeof(float));
  const int32_t q = add(WeightFormat::Q8_0, kHidden, 68), kv = add(WeightFormat::F16, kKv, kHidden * 2);
  Program program(weights);
  ValueId x = -1, queries = -1, keys = -1, values = -1, out = -1, rows = -1, logits = -1;
  CHECK(program.embed(embedding, 1.0f, &x).ok());
  CHECK(program.linear(x, q, -1, &queries).ok());
  CHECK(program.linear(x, kv, -1, &keys).ok());
  CHECK(program.linear(x, kv, -1, &values).ok());
  CHECK(program.attention(queries, keys, values, {0, {2, 1, kKv, 1.0f, 7, 0.0f}}, &out).ok());
  CHECK(program.end_body(out, &rows).ok());
  CHECK(program.linear(rows, embedding, -1, &logits).ok());
  CHECK(program.end_head(logits).ok());

  const ProgramWork work = work_of(program, weights);
  CHECK(work.body.int8_macs == kHidden * kHidden && work.body.float_macs == 2 * kKv * kHidden);
  CHECK(work.body.bytes == kHidden * kHidden * 17 / 16 + 2 * kKv * kHidden * 2);
  CHECK(work.head.int8_macs == 0 && work.head.float_macs == kVocab * kHidden);
  CHECK(work.head.bytes == 48 * kHidden * 4);  // panels of 16 rows
  CHECK(work.windows == std::vector<int32_t>{7});

  const auto parts = matrix_parts(weights, 48 * kHidden * 4 + 100);
  CHECK(parts.size() == 2 && parts[0].size() == 48 * kHidden * 4 && parts[1].size() == 100);
}

}  // namespace

int main() {
  test_every_table_has_peaks();
  test_every_byte_is_read();
  test_buffers_are_measured();
  test_the_work_of_a_program_is_that_of_its_matrices();
  return octavo_test::check_result();
}
