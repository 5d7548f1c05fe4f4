// Included inside `namespace octavo::<isa> { namespace {` after the ISA's vocabulary: no include, no namespace here.
// Elementwise kernels, written once over 16 lanes.

// exp(x) to about 1e-7 of its value: 0 below -87.3, the largest float above 88.7, NaN for NaN.
inline Vec exponential(Vec x) {
  const Vec low = splat(-87.33654f), high = splat(88.72283f);
  const Vec clamped = max(low, min(high, x));  // in this order NaN passes through
  const Vec n = round(mul(clamped, splat(1.44269504f)));
  // ln 2 in two parts; n times the first is exact.
  const Vec r = fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), clamped));
  Vec p = splat(1.0f / 5040.0f);
  p = fma(p, r, splat(1.0f / 720.0f));
  p = fma(p, r, splat(1.0f / 120.0f));
  p = fma(p, r, splat(1.0f / 24.0f));
  p = fma(p, r, splat(1.0f / 6.0f));
  p = fma(p, r, splat(0.5f));
  p = fma(p, r, splat(1.0f));
  p = fma(p, r, splat(1.0f));
  return select(less(x, low), zero(), scale_by_power(p, n));
}

// tanh(x) by its odd series near 0, where 1 - 2 / (exp(2x) + 1) cancels.
inline Vec hyperbolic_tangent(Vec x) {
  const Vec far = sub(splat(1.0f), div(splat(2.0f), add(exponential(add(x, x)), splat(1.0f))));
  const Vec square = mul(x, x);
  Vec p = splat(-17.0f / 315.0f);
  p = fma(p, square, splat(2.0f / 15.0f));
  p = fma(p, square, splat(-1.0f / 3.0f));
  const Vec near = fma(mul(x, square), p, x);
  return select(less(square, splat(0.01f)), near, far);
}

// Calls f(offset, lanes) over `size` floats: 16 lanes at a time, then the rest.
template <typename Function>
inline void for_lanes(int32_t size, Function f) {
  int32_t i = 0;
  for (; i + 16 <= size; i += 16) f(i, 16);
  if (i < size) f(i, size - i);
}
inline Vec load_lanes(const float* p, int32_t n) { return n == 16 ? load(p) : load_part(p, n); }
inline void store_lanes(float* p, Vec v, int32_t n) {
  if (n == 16) {
    store(p, v);
  } else {
    store_part(p, v, n);
  }
}

void rms_norm(const float* x, const float* weight, int32_t num_groups, int32_t size, float eps, float* out) {
  for (int32_t g = 0; g < num_groups; ++g, x += size, out += size) {
    Vec squares = zero();
    for_lanes(size, [&](int32_t i, int32_t n) {
      const Vec v = load_lanes(x + i, n);
      squares = fma(v, v, squares);
    });
    const Vec mean = splat(reduce_add(squares) / static_cast<float>(size));
    const Vec inverse = div(splat(1.0f), square_root(add(mean, splat(eps))));
    for_lanes(size, [&](int32_t i, int32_t n) {
      store_lanes(out + i, mul(mul(load_lanes(x + i, n), inverse), load_lanes(weight + i, n)), n);
    });
  }
}

inline void rope_neox(const float* x, const float* cos, const float* sin, int32_t num_dims, float* out) {
  const int32_t half = num_dims / 2;
  for_lanes(half, [&](int32_t i, int32_t n) {
    const Vec a = load_lanes(x + i, n), b = load_lanes(x + half + i, n);
    const Vec ca = load_lanes(cos + i, n), cb = load_lanes(cos + half + i, n);
    const Vec sa = load_lanes(sin + i, n), sb = load_lanes(sin + half + i, n);
    store_lanes(out + i, fma(b, sa, mul(a, ca)), n);
    store_lanes(out + half + i, fma(a, sb, mul(b, cb)), n);
  });
}

inline void rope_adjacent(const float* x, const float* cos, const float* sin, int32_t num_dims, float* out) {
  for_lanes(num_dims, [&](int32_t i, int32_t n) {
    const Vec v = load_lanes(x + i, n);
    store_lanes(out + i, fma(swap_pairs(v), load_lanes(sin + i, n), mul(v, load_lanes(cos + i, n))), n);
  });
}

void rope(const float* x, const float* cos, const float* sin, RopeOrder order, int32_t num_heads, int32_t head_dim,
          int32_t num_dims, float* out) {
  for (int32_t h = 0; h < num_heads; ++h, x += head_dim, out += head_dim) {
    if (order == RopeOrder::kNeox) {
      rope_neox(x, cos, sin, num_dims, out);
    } else {
      rope_adjacent(x, cos, sin, num_dims, out);
    }
    for (int32_t i = num_dims; i < head_dim; ++i) out[i] = x[i];
  }
}

// The tanh form of gelu is x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)).
inline Vec activated(Activation activation, Vec x) {
  Vec minus = sub(zero(), x);
  if (activation == Activation::kGeluTanh) {
    const Vec cubic = fma(mul(splat(0.044715f), mul(x, x)), x, x);
    minus = mul(splat(-1.59576912f), cubic);
  }
  return div(x, add(splat(1.0f), exponential(minus)));
}

void gated(Activation activation, const float* gate, const float* up, int32_t size, float* out) {
  for_lanes(size, [&](int32_t i, int32_t n) {
    store_lanes(out + i, mul(activated(activation, load_lanes(gate + i, n)), load_lanes(up + i, n)), n);
  });
}

void add_rows(const float* a, const float* b, int32_t size, float* out) {
  for_lanes(size,
            [&](int32_t i, int32_t n) { store_lanes(out + i, add(load_lanes(a + i, n), load_lanes(b + i, n)), n); });
}

inline Vec capped(Vec x, float cap) { return mul(splat(cap), hyperbolic_tangent(div(x, splat(cap)))); }

void softcap(const float* x, float cap, int32_t size, float* out) {
  for_lanes(size, [&](int32_t i, int32_t n) { store_lanes(out + i, capped(load_lanes(x + i, n), cap), n); });
}
