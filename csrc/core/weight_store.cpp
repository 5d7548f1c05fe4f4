#include "core/weight_store.h"

#include <cstring>

namespace octavo {

Status WeightStore::add_matrix(WeightFormat format, int32_t rows, int32_t cols, std::span<const std::byte> source,
                               ThreadPool& pool, int32_t* id) {
  if (rows <= 0 || cols <= 0) {
    return Status::invalid("a matrix of " + std::to_string(rows) + " x " + std::to_string(cols) + " is empty");
  }
  PackedMatrix matrix{format, rows, cols, (rows - 1) / kPanelRows + 1, packed_panel_bytes(format, cols), nullptr};
  if (matrix.panel_bytes == 0) {
    return Status::invalid("format " + std::to_string(static_cast<int>(format)) + " with " + std::to_string(cols) +
                           " columns cannot be packed");
  }
  const size_t source_bytes = rows * source_row_bytes(format, cols);
  if (source.size() != source_bytes) {
    return Status::invalid("a matrix of " + std::to_string(source.size()) + " bytes, its shape needs " +
                           std::to_string(source_bytes));
  }
  std::byte* packed = nullptr;
  Status status = arena_.allocate(static_cast<size_t>(matrix.num_panels) * matrix.panel_bytes, &packed);
  if (!status.ok()) return status;
  matrix.data = packed;
  struct Job {
    const PackedMatrix& matrix;
    const std::byte* source;
    std::byte* packed;
    int num_members;
  } job{matrix, source.data(), packed, pool.size()};
  pool.run(
      [](void* context, int member) {
        const Job& job = *static_cast<const Job*>(context);
        const Share share = share_of(job.matrix.num_panels, member, job.num_members);
        if (share.begin == share.end) return;
        pack_panels(job.matrix.format, job.source, job.matrix.rows, job.matrix.cols, share.begin, share.end,
                    job.packed);
      },
      &job);
  *id = num_matrices();
  matrices_.push_back(matrix);
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

}  // namespace octavo
