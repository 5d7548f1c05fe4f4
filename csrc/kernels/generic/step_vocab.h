// Included inside `namespace octavo::<isa> { namespace {` after step_math.h: no include, no namespace here.
// Passes over logits, for sampling.

constexpr float kMinusInfinity = -__builtin_inff();

inline Mask lane_mask(int32_t n) { return (1u << n) - 1; }

float greatest(const float* x, int32_t size) {
  const Vec bottom = splat(kMinusInfinity);
  Vec best = bottom;
  for_lanes(size, [&](int32_t i, int32_t n) {
    best = max(select(lane_mask(n), load_lanes(x + i, n), bottom), best);  // in this order NaN is ignored
  });
  return reduce_max(best);
}

int32_t find(const float* x, int32_t size, float value) {
  const Vec wanted = splat(value);
  for (int32_t i = 0; i < size; i += 16) {
    const int32_t n = size - i < 16 ? size - i : 16;
    const Mask mask = equal(load_lanes(x + i, n), wanted) & lane_mask(n);
    if (mask != 0) return i + __builtin_ctz(mask);
  }
  return -1;
}

float exp_sum(const float* x, int32_t size, float highest, float temperature, float* out) {
  Vec sum = zero();
  const Vec shift = splat(highest), divisor = splat(temperature);
  for_lanes(size, [&](int32_t i, int32_t n) {
    const Vec weight = exponential(div(sub(load_lanes(x + i, n), shift), divisor));
    const Vec number = select(lane_mask(n), max(weight, zero()), zero());  // in this order NaN becomes 0
    sum = add(sum, number);
    if (out != nullptr) store_lanes(out + i, number, n);
  });
  return reduce_add(sum);
}

int32_t count_greater(const float* x, int32_t size, float bound) {
  int32_t count = 0;
  const Vec limit = splat(bound);
  for_lanes(size, [&](int32_t i, int32_t n) {
    count += __builtin_popcount(greater(load_lanes(x + i, n), limit) & lane_mask(n));
  });
  return count;
}

int32_t collect_greater(const float* x, int32_t size, float bound, int32_t* indices) {
  int32_t count = 0;
  const Vec limit = splat(bound);
  for_lanes(size, [&](int32_t i, int32_t n) {
    const Mask mask = greater(load_lanes(x + i, n), limit) & lane_mask(n);
    if (mask != 0) count += write_indices(mask, i, indices + count);
  });
  return count;
}
