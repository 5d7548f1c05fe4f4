// Included inside `namespace octavo::<isa> { namespace {`: no include, no namespace here.
// Eight lanes in the compiler's own vectors, the same for every ISA.

using Floats8 [[gnu::vector_size(32)]] = float;
using Ints8 [[gnu::vector_size(32)]] = int32_t;

// Of eight quantised blocks.
struct Scales {
  Floats8 d;
  Ints8 sums[2];  // of the codes 0..15, and of 16..31
};
