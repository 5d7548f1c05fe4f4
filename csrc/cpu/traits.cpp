#include "cpu/traits.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace octavo {
namespace {

bool is_amd() {
#if defined(__x86_64__)
  unsigned highest = 0, ebx = 0, ecx = 0, edx = 0;
  __get_cpuid(0, &highest, &ebx, &ecx, &edx);
  return ebx == signature_AMD_ebx && edx == signature_AMD_edx && ecx == signature_AMD_ecx;
#else
  return false;
#endif
}

}  // namespace

bool all_streams_far_ahead = !is_amd();
bool panels_in_pairs = !is_amd();
bool fetching_costs_products = !is_amd();

}  // namespace octavo
