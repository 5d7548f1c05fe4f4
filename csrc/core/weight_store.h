// The weights of a model, packed for the multiply kernels.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "core/arena.h"
#include "core/thread_pool.h"
#include "core/weight_file.h"
#include "formats/packed.h"

namespace octavo {

// float32 values that stay as they are: norm weights and biases.
struct Vector {
  const float* data;
  int32_t size;
};

class WeightStore {
 public:
  // Packs a matrix from GGUF bytes (rows * row bytes of `format`); threads share the panels. `id` is its index.
  Status add_matrix(WeightFormat format, int32_t rows, int32_t cols, std::span<const std::byte> source,
                    ThreadPool& pool, int32_t* id);
  Status add_vector(std::span<const float> source, int32_t* id);

  // Packs as add_matrix does, into memory of the caller's: for a file.
  static Status pack(WeightFormat format, int32_t rows, int32_t cols, std::span<const std::byte> source,
                     ThreadPool& pool, Mapping* packed);

  // Takes over weights that are packed already; `region` is their index. Matrices and vectors are then found in it by
  // their offset, a multiple of 64: adopt_matrix(...) refuses what does not lie in the region in full.
  void add_region(Mapping region, int32_t* id);
  Status adopt_matrix(WeightFormat format, int32_t rows, int32_t cols, int32_t region, size_t offset, int32_t* id);
  Status adopt_vector(int32_t size, int32_t region, size_t offset, int32_t* id);

  const PackedMatrix& matrix(int32_t id) const { return matrices_[id]; }
  const Vector& vector(int32_t id) const { return vectors_[id]; }
  int32_t num_matrices() const { return static_cast<int32_t>(matrices_.size()); }
  int32_t num_vectors() const { return static_cast<int32_t>(vectors_.size()); }
  size_t used_bytes() const;

 private:
  Status find(int32_t region, size_t offset, size_t bytes, const std::byte** out) const;

  Arena arena_;
  std::vector<Mapping> regions_;
  // Plans keep pointers to them while further models are loaded: growing must not move them.
  std::deque<PackedMatrix> matrices_;
  std::deque<Vector> vectors_;
};

}  // namespace octavo
