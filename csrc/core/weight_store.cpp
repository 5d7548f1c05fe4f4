#include "core/weight_store.h"

#include <cstring>
#include <utility>

namespace octavo {
namespace {

// Shape and panels of a packed matrix, its data still missing.
Status describe(WeightFormat format, int32_t rows, int32_t cols, PackedMatrix* out) {
  if (rows <= 0 || cols <= 0) {
    return Status::invalid("a matrix of " + std::to_string(rows) + " x " + std::to_string(cols) + " is empty");
  }
  *out = {format, rows, cols, (rows - 1) / kPanelRows + 1, packed_panel_bytes(format, cols), nullptr};
  if (out->panel_bytes == 0) {
    return Status::invalid("format " + std::to_string(static_cast<int>(format)) + " with " + std::to_string(cols) +
                           " columns cannot be packed");
  }
  return {};
}

Status check_source(const PackedMatrix& matrix, size_t num_bytes) {
  const size_t needed = matrix.rows * source_row_bytes(matrix.format, matrix.cols);
  if (num_bytes == needed) return {};
  return Status::invalid("a matrix of " + std::to_string(num_bytes) + " bytes, its shape needs " +
                         std::to_string(needed));
}

size_t packed_bytes(const PackedMatrix& matrix) { return static_cast<size_t>(matrix.num_panels) * matrix.panel_bytes; }

// All members pack their share of the panels.
void pack_all(const PackedMatrix& matrix, const std::byte* source, ThreadPool& pool, std::byte* packed) {
  struct Job {
    const PackedMatrix& matrix;
    const std::byte* source;
    std::byte* packed;
    int num_members;
  } job{matrix, source, packed, pool.size()};
  pool.run(
      [](void* context, int member) {
        const Job& job = *static_cast<const Job*>(context);
        const Share share = share_of(job.matrix.num_panels, member, job.num_members);
        if (share.begin == share.end) return;
        pack_panels(job.matrix.format, job.source, job.matrix.rows, job.matrix.cols, share.begin, share.end,
                    job.packed);
      },
      &job);
}

}  // namespace

Status WeightStore::add_matrix(WeightFormat format, int32_t rows, int32_t cols, std::span<const std::byte> source,
                               ThreadPool& pool, int32_t* id) {
  PackedMatrix matrix;
  if (Status status = describe(format, rows, cols, &matrix); !status.ok()) return status;
  if (Status status = check_source(matrix, source.size()); !status.ok()) return status;
  std::byte* packed = nullptr;
  if (Status status = arena_.allocate(packed_bytes(matrix), &packed); !status.ok()) return status;
  pack_all(matrix, source.data(), pool, packed);
  matrix.data = packed;
  *id = num_matrices();
  matrices_.push_back(matrix);
  return {};
}

Status WeightStore::pack(WeightFormat format, int32_t rows, int32_t cols, std::span<const std::byte> source,
                         ThreadPool& pool, Mapping* packed) {
  PackedMatrix matrix;
  if (Status status = describe(format, rows, cols, &matrix); !status.ok()) return status;
  if (Status status = check_source(matrix, source.size()); !status.ok()) return status;
  if (Status status = Mapping::create(packed_bytes(matrix), packed); !status.ok()) return status;
  pack_all(matrix, source.data(), pool, packed->data());
  return {};
}

Status WeightStore::add_vector(std::span<const float> source, int32_t* id) {
  if (source.empty()) return Status::invalid("a vector without elements");
  std::byte* copy = nullptr;
  if (Status status = arena_.allocate(source.size_bytes(), &copy); !status.ok()) return status;
  std::memcpy(copy, source.data(), source.size_bytes());
  *id = num_vectors();
  vectors_.push_back({reinterpret_cast<const float*>(copy), static_cast<int32_t>(source.size())});
  return {};
}

void WeightStore::add_region(Mapping region, int32_t* id) {
  *id = static_cast<int32_t>(regions_.size());
  regions_.push_back(std::move(region));
}

Status WeightStore::adopt_matrix(WeightFormat format, int32_t rows, int32_t cols, int32_t region, size_t offset,
                                 int32_t* id) {
  PackedMatrix matrix;
  if (Status status = describe(format, rows, cols, &matrix); !status.ok()) return status;
  if (Status status = find(region, offset, packed_bytes(matrix), &matrix.data); !status.ok()) return status;
  *id = num_matrices();
  matrices_.push_back(matrix);
  return {};
}

Status WeightStore::adopt_vector(int32_t size, int32_t region, size_t offset, int32_t* id) {
  if (size <= 0) return Status::invalid("a vector without elements");
  const std::byte* data = nullptr;
  if (Status status = find(region, offset, size * sizeof(float), &data); !status.ok()) return status;
  *id = num_vectors();
  vectors_.push_back({reinterpret_cast<const float*>(data), size});
  return {};
}

size_t WeightStore::used_bytes() const {
  size_t bytes = arena_.used_bytes();
  for (const Mapping& region : regions_) bytes += region.size();
  return bytes;
}

Status WeightStore::find(int32_t region, size_t offset, size_t bytes, const std::byte** out) const {
  if (region < 0 || static_cast<size_t>(region) >= regions_.size()) return Status::invalid("no such region");
  const Mapping& memory = regions_[region];
  if (offset % kCacheLine != 0 || bytes > memory.size() || offset > memory.size() - bytes) {
    return Status::invalid(std::to_string(bytes) + " bytes at " + std::to_string(offset) +
                           " do not lie in packed weights of " + std::to_string(memory.size()));
  }
  *out = memory.data() + offset;
  return {};
}

}  // namespace octavo
