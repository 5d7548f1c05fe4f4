#include "cpu/dispatch.h"

namespace octavo {
namespace {

// Best first.
constexpr KernelTable kTables[] = {
#if defined(OCTAVO_HAS_AVX512_VNNI)
    {"avx512_vnni", kAvx2 | kFma | kF16c | kAvx512F | kAvx512Bw | kAvx512Vl | kAvx512Dq | kAvx512Vnni,
     &avx512_vnni::linear_kernels, &avx512_vnni::step_kernels, &avx512_vnni::peak_kernels},
#endif
#if defined(OCTAVO_HAS_AVX512)
    {"avx512", kAvx2 | kFma | kF16c | kAvx512F | kAvx512Bw | kAvx512Vl | kAvx512Dq, &avx512::linear_kernels,
     &avx512::step_kernels, &avx512::peak_kernels},
#endif
#if defined(OCTAVO_HAS_AVX2)
    {"avx2", kAvx2 | kFma | kF16c, &avx2::linear_kernels, &avx2::step_kernels, &avx2::peak_kernels},
#endif
    {"scalar", 0, &scalar::linear_kernels, &scalar::step_kernels, &scalar::peak_kernels},
};

}  // namespace

std::vector<const KernelTable*> supported_tables(Features available) {
  std::vector<const KernelTable*> tables;
  for (const KernelTable& table : kTables) {
    if (is_subset(table.needs, available)) tables.push_back(&table);
  }
  return tables;
}

const KernelTable* choose_table(std::string_view name, Features available) {
  for (const KernelTable* table : supported_tables(available)) {
    if (name.empty() || name == table->name) return table;
  }
  return nullptr;
}

}  // namespace octavo
