// The whole test framework: CHECK counts and prints failures, check_result() is what main returns.
#pragma once

#include <cstdio>

namespace octavo_test {

inline int num_checks = 0;
inline int num_failures = 0;
constexpr int kMaxPrinted = 20;

inline bool check(bool passed, const char* condition, const char* file, int line) {
  ++num_checks;
  if (!passed && ++num_failures <= kMaxPrinted) std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, condition);
  return passed;
}

// 0 if all checks passed and there was at least one, as an exit status.
inline int check_result() {
  std::printf("%d checks, %d failed\n", num_checks, num_failures);
  return num_failures == 0 && num_checks > 0 ? 0 : 1;
}

}  // namespace octavo_test

// Evaluates to whether the condition holds, so that a test can print more: if (!CHECK(a == b)) std::fprintf(...).
#define CHECK(condition) ::octavo_test::check(static_cast<bool>(condition), #condition, __FILE__, __LINE__)
