// Peak loops, for any vector register. Included inside the anonymous namespace of an ISA translation unit.
//
// The arithmetic is inline assembly on operands that the compiler must keep in registers: left to itself g++ 12 keeps an
// array of accumulators on the stack, and the loop measures the stack. 12 accumulators hide the latency of two
// instructions per cycle, and fit the 16 registers of AVX2.

// Reads with eight loads in flight, and asks for what comes next: a tenth faster than what the hardware prefetcher does
// alone (Zen 4). Vector: of 8, 32 or 64 bytes.
template <class Vector>
uint64_t read_all(const std::byte* data, size_t bytes) {
  constexpr size_t kStep = 8 * sizeof(Vector), kDistance = 3072;
  Vector a{}, b{}, c{}, d{}, e{}, f{}, g{}, h{};
  for (size_t at = 0; at < bytes; at += kStep) {
#pragma GCC unroll 8
    for (size_t line = 0; line < kStep; line += 64) __builtin_prefetch(data + at + kDistance + line, 0, 2);
    const Vector* from = reinterpret_cast<const Vector*>(data + at);
    a ^= from[0], b ^= from[1], c ^= from[2], d ^= from[3];
    e ^= from[4], f ^= from[5], g ^= from[6], h ^= from[7];
  }
  const Vector all = (a ^ b) ^ (c ^ d) ^ (e ^ f) ^ (g ^ h);
  uint64_t words[sizeof(Vector) / 8], mixed = 0;
  __builtin_memcpy(words, &all, sizeof(all));
  for (const uint64_t word : words) mixed ^= word;
  return mixed;
}

#define OCTAVO_TWELVE_TIMES(op)                                                                                   \
  op " %13, %12, %0\n\t" op " %13, %12, %1\n\t" op " %13, %12, %2\n\t" op " %13, %12, %3\n\t" op                  \
     " %13, %12, %4\n\t" op " %13, %12, %5\n\t" op " %13, %12, %6\n\t" op " %13, %12, %7\n\t" op                  \
     " %13, %12, %8\n\t" op " %13, %12, %9\n\t" op " %13, %12, %10\n\t" op " %13, %12, %11"

// Defines NAME<Vector>(rounds): a round is 12 times `op`, which adds to its destination. All zeros: no operand slows a
// CPU down.
#define OCTAVO_PEAK_LOOP(NAME, op)                                                                                \
  template <class Vector>                                                                                         \
  void NAME(int64_t rounds) {                                                                                     \
    Vector a{}, b{}, c{}, d{}, e{}, f{}, g{}, h{}, i{}, j{}, k{}, l{}, x{}, y{};                                  \
    for (; rounds > 0; --rounds) {                                                                                \
      asm volatile(OCTAVO_TWELVE_TIMES(op)                                                                        \
                   : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(f), "+v"(g), "+v"(h), "+v"(i), "+v"(j),    \
                     "+v"(k), "+v"(l)                                                                             \
                   : "v"(x), "v"(y));                                                                             \
    }                                                                                                             \
  }
inline constexpr int64_t kPeakLoopOps = 12;

// int8 without VNNI: of 8 k-groups of 4-bit codes the int16 products are summed first, the longest sum that cannot
// saturate. A round is four such runs.
template <class Vector>
void run_maddubs(int64_t rounds) {
  Vector a{}, b{}, c{}, d{}, x{}, y{}, ones{}, sum, product;
#define OCTAVO_ADD_PRODUCT "vpmaddubsw %7, %6, %5\n\tvpaddw %5, %4, %4\n\t"
#define OCTAVO_RUN(total)                                                                                         \
  "vpmaddubsw %7, %6, %4\n\t" OCTAVO_ADD_PRODUCT OCTAVO_ADD_PRODUCT OCTAVO_ADD_PRODUCT OCTAVO_ADD_PRODUCT         \
      OCTAVO_ADD_PRODUCT OCTAVO_ADD_PRODUCT OCTAVO_ADD_PRODUCT "vpmaddwd %8, %4, %4\n\tvpaddd %4, " total ", " total "\n\t"
  for (; rounds > 0; --rounds) {
    asm volatile(OCTAVO_RUN("%0") OCTAVO_RUN("%1") OCTAVO_RUN("%2") OCTAVO_RUN("%3")
                 : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "=&v"(sum), "=&v"(product)
                 : "v"(x), "v"(y), "v"(ones));
  }
#undef OCTAVO_RUN
#undef OCTAVO_ADD_PRODUCT
}
inline constexpr int64_t kMaddubsOps = 32;  // of vpmaddubsw, in a round
