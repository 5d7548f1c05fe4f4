// GMAC/s and GB/s of the matrix kernels on one thread, per table, shape and number of tokens.
// Usage: bench_linear [table] [seconds per point] [int8|int8x2]; "" is the best table of this machine, the default.
// Weights are read from several copies in turn, 64 MB or more together, so that M=1 shows memory and not the L2 cache.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "cpu/dispatch.h"
#include "formats/packed.h"

namespace {

using octavo::LinearKernels;
using octavo::PackedMatrix;
using octavo::Precision;
using octavo::WeightFormat;

struct Shape {
  const char* name;
  WeightFormat format;
  int32_t rows;
  int32_t cols;
};

constexpr Shape kShapes[] = {
    {"smollm2 qkv Q4_1", WeightFormat::Q4_1, 960, 576},      {"smollm2 gate+up Q4_1", WeightFormat::Q4_1, 3072, 576},
    {"smollm2 down Q4_1", WeightFormat::Q4_1, 576, 1536},    {"smollm2 head Q8_0", WeightFormat::Q8_0, 49152, 576},
    {"gemma gate+up Q5_0", WeightFormat::Q5_0, 4096, 640},   {"gemma down Q6_K", WeightFormat::Q6_K, 640, 2048},
    {"gemma down Q4_K", WeightFormat::Q4_K, 640, 2048},      {"gemma o Q4_K", WeightFormat::Q4_K, 640, 1024},
    {"gate+up Q4_0", WeightFormat::Q4_0, 3072, 576},         {"gate+up F16", WeightFormat::F16, 3072, 576},
    {"gate+up BF16", WeightFormat::BF16, 3072, 576},         {"gate+up F32", WeightFormat::F32, 3072, 576},
    {"down Q2_K", WeightFormat::Q2_K, 640, 2048},            {"down Q3_K", WeightFormat::Q3_K, 640, 2048},
    {"down Q5_K", WeightFormat::Q5_K, 640, 2048},            {"down IQ4_XS", WeightFormat::IQ4_XS, 640, 2048},
};
constexpr int32_t kTokens[] = {1, 2, 4, 8, 16, 32, 128, 512};
constexpr size_t kWeightBytes = size_t{64} << 20;
constexpr size_t kHugePage = size_t{2} << 20;

// Zeroed memory on huge pages where the system gives them.
class Buffer {
 public:
  explicit Buffer(size_t bytes) {
    const size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(kHugePage, rounded)));
    if (data_ == nullptr) throw std::bad_alloc();
#ifdef __linux__
    madvise(data_.get(), rounded, MADV_HUGEPAGE);
#endif
    std::memset(data_.get(), 0, rounded);
  }
  std::byte* bytes() const { return data_.get(); }
  float* floats() const { return reinterpret_cast<float*>(data_.get()); }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The best of repeated runs over the copies of the weights, as seconds for one product.
double time_product(const LinearKernels& kernels, Precision precision, const std::vector<PackedMatrix>& copies,
                    const Buffer& x, int32_t tokens, double budget) {
  const PackedMatrix& first = copies.front();
  const Buffer acts(kernels.act_bytes(tokens, first.cols, precision));
  const Buffer out(sizeof(float) * tokens * first.rows);
  kernels.quantize(x.floats(), first.cols, tokens, first.cols, precision, 0, (tokens + 7) / 8, acts.bytes());
  double best = 1e9;
  size_t turn = 0;
  const double end = seconds_now() + budget;
  do {
    const size_t runs = tokens > 8 ? 1 : copies.size();
    const double start = seconds_now();
    for (size_t i = 0; i < runs; ++i) {
      const octavo::MultiplyInput in = {acts.bytes(), precision, x.floats(), static_cast<size_t>(first.cols), tokens};
      kernels.multiply(copies[turn++ % copies.size()], in, 0, first.num_panels, out.floats(), first.rows, nullptr);
    }
    const double taken = (seconds_now() - start) / static_cast<double>(runs);
    if (taken < best) best = taken;
  } while (seconds_now() < end);
  return best;
}

void bench_shape(const LinearKernels& kernels, Precision precision, const Shape& shape, double budget) {
  const size_t panel_bytes = octavo::packed_panel_bytes(shape.format, shape.cols);
  const int32_t num_panels = (shape.rows + octavo::kPanelRows - 1) / octavo::kPanelRows;
  const size_t bytes = num_panels * panel_bytes;
  const size_t num_copies = kWeightBytes / bytes + 1;
  const Buffer weights(num_copies * bytes);
  std::mt19937 random(1);
  // Random bits would hold NaNs; bytes 0x2X 0x2X are valid codes, scales and floats alike.
  for (size_t i = 0; i < num_copies * bytes; ++i) weights.bytes()[i] = static_cast<std::byte>(0x20 | (random() & 15));
  std::vector<PackedMatrix> copies;
  for (size_t i = 0; i < num_copies; ++i) {
    copies.push_back({shape.format, shape.rows, shape.cols, num_panels, panel_bytes, weights.bytes() + i * bytes});
  }
  const Buffer x(sizeof(float) * 512 * shape.cols);
  std::normal_distribution<float> normal;
  for (int32_t i = 0; i < 512 * shape.cols; ++i) x.floats()[i] = normal(random);

  std::printf("%-20s %6d x %-5d", shape.name, shape.rows, shape.cols);
  for (const int32_t tokens : kTokens) {
    if (tokens > 32 && shape.rows > 8192) continue;
    const double seconds = time_product(kernels, precision, copies, x, tokens, budget);
    std::printf(" %6.1f", 1e-9 * shape.rows * shape.cols * tokens / seconds);
    if (tokens == 1) std::printf(" (%4.1f GB/s)", 1e-9 * static_cast<double>(bytes) / seconds);
  }
  std::printf("\n");
  std::fflush(stdout);
}

// Microseconds a token costs to quantise, in tiles of 8.
void bench_quantize(const LinearKernels& kernels, Precision precision, int32_t cols, double budget) {
  const Buffer x(sizeof(float) * octavo::kTileTokens * cols);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (int32_t i = 0; i < octavo::kTileTokens * cols; ++i) x.floats()[i] = normal(random);
  const Buffer acts(kernels.act_bytes(octavo::kTileTokens, cols, precision));
  double best = 1e9;
  const double end = seconds_now() + budget;
  do {
    const double start = seconds_now();
    for (int32_t i = 0; i < 16; ++i) {
      kernels.quantize(x.floats(), cols, octavo::kTileTokens, cols, precision, 0, 1, acts.bytes());
    }
    const double taken = (seconds_now() - start) / (16 * octavo::kTileTokens);
    if (taken < best) best = taken;
  } while (seconds_now() < end);
  std::printf("quantise %d columns: %.3f us a token\n", cols, 1e6 * best);
}

}  // namespace

int main(int argc, char** argv) {
  const octavo::KernelTable* table = octavo::choose_table(argc > 1 ? argv[1] : "", octavo::probe_features());
  const double budget = argc > 2 ? std::atof(argv[2]) : 0.1;
  const Precision precision =
      argc > 3 && std::strcmp(argv[3], "int8x2") == 0 ? Precision::kInt8x2 : Precision::kInt8;
  if (table == nullptr) {
    std::fprintf(stderr, "no table %s on this machine\n", argv[1]);
    return 1;
  }
  for (const int32_t cols : {576, 2048}) bench_quantize(*table->linear, precision, cols, budget);
  std::printf("table %s, GMAC/s per number of tokens\n%-35s", table->name, "");
  for (const int32_t tokens : kTokens) std::printf(tokens == 1 ? " %6d            " : " %6d", tokens);
  std::printf("\n");
  for (const Shape& shape : kShapes) bench_shape(*table->linear, precision, shape, budget);
  return 0;
}
