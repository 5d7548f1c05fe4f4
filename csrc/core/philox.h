// Counter-based random numbers: the same (seed, choice, position) gives the same number anywhere, in any order.
#pragma once

#include <array>
#include <cstdint>

namespace octavo {

// Philox4x32-10. Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0], p1 = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ key[0], static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return c;
}

// In [0, 1), with all 53 bits a double holds there.
constexpr double uniform(uint64_t seed, uint32_t choice, uint32_t position) {
  const auto r =
      philox4x32({position, choice, 0, 0}, {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return static_cast<double>((uint64_t{r[0]} << 21) ^ (r[1] >> 11)) * 0x1p-53;
}

}  // namespace octavo
