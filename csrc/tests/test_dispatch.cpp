// Which kernel table a set of CPU features gets.
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "cpu/dispatch.h"

namespace {

using namespace octavo;

std::string best(Features available) { return choose_table("", available)->name; }

void test_every_set_of_features_has_the_scalar_table_last() {
  for (const Features available : {Features{0}, Features{kAvx2}, ~Features{0}}) {
    CHECK(std::strcmp(supported_tables(available).back()->name, "scalar") == 0);
  }
}

#if defined(__x86_64__)
constexpr Features kHaswell = kAvx2 | kFma | kF16c;
constexpr Features kAvx512 = kHaswell | kAvx512F | kAvx512Bw | kAvx512Vl | kAvx512Dq;

void test_the_best_table_whose_needs_are_met_is_chosen() {
  CHECK(best(kAvx512 | kAvx512Vnni) == "avx512_vnni");
  CHECK(best(kAvx512) == "avx512");
  for (const Features missing : {kAvx512F, kAvx512Bw, kAvx512Vl, kAvx512Dq}) {
    CHECK(best((kAvx512 | kAvx512Vnni) & ~missing) == "avx2");
  }
  CHECK(best(kHaswell) == "avx2");
  for (const Features missing : {kAvx2, kFma, kF16c}) CHECK(best(kHaswell & ~missing) == "scalar");
}

void test_a_table_can_be_forced_where_it_runs() {
  CHECK(std::strcmp(choose_table("avx2", ~Features{0})->name, "avx2") == 0);
  CHECK(choose_table("avx2", kAvx2 | kFma) == nullptr);
  CHECK(std::strcmp(choose_table("avx512", ~Features{0})->name, "avx512") == 0);
  CHECK(choose_table("avx512_vnni", kAvx512) == nullptr);
  CHECK(choose_table("sse2", ~Features{0}) == nullptr);
}
#endif

}  // namespace

int main() {
  test_every_set_of_features_has_the_scalar_table_last();
#if defined(__x86_64__)
  test_the_best_table_whose_needs_are_met_is_chosen();
  test_a_table_can_be_forced_where_it_runs();
#endif
  return octavo_test::check_result();
}
