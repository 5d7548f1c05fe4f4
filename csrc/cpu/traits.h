// What kernels do differently from processor to processor of one ISA. It changes speed, never a result, so tests may set
// it before threads start.
#pragma once

namespace octavo {

// Whether any stream of weights is read faster if it is asked for far ahead. On AMD those with most bytes per product
// are not, if tokens are few: with kFarAhead one token of Q6_K runs at 0.85 of the speed, two of Q8_0 at 0.8 (Zen 4).
// On Intel all are: without it one token of F16, Q6_K or Q8_0 runs at 0.4 to 0.6 (Emerald Rapids).
extern bool all_streams_far_ahead;

// Whether panels of AVX-512 are best multiplied two at a time, unpacked once for several tiles of tokens. On Intel, where
// two ports do all 512-bit arithmetic and two load, 32 tokens take 0.7 to 0.8 of the time (Emerald Rapids). On AMD, where
// unpacking is free beside products and its stores are not, it costs a fifth (Zen 4).
extern bool panels_in_pairs;

// Whether asking for keys and values while products compute slows these by more than attention gains: on Intel steps of
// 32 tokens were 8 to 13 % faster without. On AMD they are 4 % slower (Zen 4).
extern bool fetching_costs_products;

}  // namespace octavo
