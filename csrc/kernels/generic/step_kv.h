// Included inside `namespace octavo::<isa> { namespace {` after step_math.h: no include, no namespace here.
// What is stored of keys and values (see kernels/kv_format.h): reading 16 codes, rounding a token's numbers.
//
// Rounding depends on a token's own numbers alone and gives the same bytes on every table, whether subnormal floats are
// flushed or not: factors are f16, subnormal ones included, and no step of a conversion is a subnormal float.

// A code as it is loaded, times scale * kUnit, plus the minimum, is the number stored.
template <KVCode kCode>
constexpr float kUnit = 1.0f;  // E4M3 is loaded 2^-8 times
template <>
constexpr float kUnit<KVCode::kInt8> = 1.0f / 128;
template <>
constexpr float kUnit<KVCode::kE5m2> = 1.0f / 32768;
template <>
constexpr float kUnit<KVCode::kUint4> = 1.0f / 16;

// The largest code as it is loaded: 448 / 256 and 57344 of the floats.
template <KVCode kCode>
constexpr float kLargest = 1.75f;
template <>
constexpr float kLargest<KVCode::kInt8> = 127.0f;
template <>
constexpr float kLargest<KVCode::kE5m2> = 57344.0f;
template <>
constexpr float kLargest<KVCode::kUint4> = 15.0f;

constexpr float kLargestHalf = 65504.0f;
constexpr uint16_t kHalfNaN = 0x7e00;

inline Vec load_kv(const Bf16* p) { return load_bf16(p); }
inline Vec load_kv_part(const Bf16* p, int32_t n) {
  Bf16 lanes[16] = {};
  for (int32_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load_bf16(lanes);
}
inline void store_kv_part(Bf16* p, Vec v, int32_t n) {
  float lanes[16];
  store(lanes, v);
  for (int32_t i = 0; i < n; ++i) p[i] = f32_to_bf16(lanes[i]);
}

template <KVCode kCode>
struct FloatCode {
  using Type = float;
};
template <>
struct FloatCode<KVCode::F16> {
  using Type = uint16_t;
};
template <>
struct FloatCode<KVCode::BF16> {
  using Type = Bf16;
};

template <KVCode kCode>
inline Vec load_bytes(const uint8_t* p) {
  if constexpr (kCode == KVCode::kInt8) return load_int8(p);
  if constexpr (kCode == KVCode::kE4m3) return load_float8<1>(p);
  return load_float8<0>(p);
}

// Channel `channel` + kOdd of 16 tokens, of 4 bits: two channels a byte, the even one below.
template <KVCode kCode, int kOdd>
inline Vec load_keys(const std::byte* codes, int32_t channel) {
  if constexpr (!has_scale(kCode)) {
    return load_kv(reinterpret_cast<const typename FloatCode<kCode>::Type*>(codes) + (channel + kOdd) * kBlockSize);
  } else if constexpr (kCode == KVCode::kUint4) {
    return load_nibbles<4 * kOdd>(reinterpret_cast<const uint8_t*>(codes) + channel / 2 * kBlockSize);
  } else {
    return load_bytes<kCode>(reinterpret_cast<const uint8_t*>(codes) + (channel + kOdd) * kBlockSize);
  }
}

// n channels of one token from `channel` on, a multiple of 16.
template <KVCode kCode>
inline Vec load_values(const std::byte* row, int32_t channel, int32_t n) {
  if constexpr (!has_scale(kCode)) {
    const auto* p = reinterpret_cast<const typename FloatCode<kCode>::Type*>(row) + channel;
    return n == 16 ? load_kv(p) : load_kv_part(p, n);
  } else if constexpr (kCode == KVCode::kUint4) {
    return load_packed_nibbles(reinterpret_cast<const uint8_t*>(row) + channel / 2);
  } else {
    const uint8_t* p = reinterpret_cast<const uint8_t*>(row) + channel;
    if (n == 16) return load_bytes<kCode>(p);
    uint8_t bytes[16] = {};
    for (int32_t i = 0; i < n; ++i) bytes[i] = p[i];
    return load_bytes<kCode>(bytes);
  }
}

// Scales and minima of one group of 16 tokens, halves. side: codes, then factors.
template <KVCode kCode>
inline size_t scales_at(int32_t head_dim, int32_t group) {
  return codes_bytes(kCode, head_dim) + group * kBlockSize * sizeof(uint16_t);
}
template <KVCode kCode>
inline size_t minima_at(int32_t head_dim, int32_t group) {
  return scales_at<kCode>(head_dim, group + static_cast<int32_t>(num_groups(head_dim)));
}
inline Vec load_halves(const std::byte* p) { return load_kv(reinterpret_cast<const uint16_t*>(p)); }
template <KVCode kCode>
inline Vec load_scales(const std::byte* side, int32_t head_dim, int32_t group) {
  return mul(load_halves(side + scales_at<kCode>(head_dim, group)), splat(kUnit<kCode>));
}
template <KVCode kCode>
inline Vec load_minima(const std::byte* side, int32_t head_dim, int32_t group) {
  return load_halves(side + minima_at<kCode>(head_dim, group));
}

// The signs of a Hadamard matrix: that of (i, j) is the parity of i & j.
struct Signs {
  constexpr Signs() : row() {
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 16; ++j) row[i][j] = __builtin_parity(i & j) ? -1.0f : 1.0f;
    }
  }
  float row[16][16];
};
constexpr Signs kSigns;

// Multiplies by the Hadamard matrix of n, a power of two: runs of 16 (or n) as sums in order, then doubled.
inline void rotate_power(const float* x, int32_t n, float* out) {
  const int32_t run = n < 16 ? n : 16;
  const Vec norm = splat(1.0f / __builtin_sqrtf(static_cast<float>(n)));
  for (int32_t first = 0; first < n; first += run) {
    Vec sum = zero();
    for (int32_t i = 0; i < run; ++i) sum = fma(splat(x[first + i]), load(kSigns.row[i]), sum);
    store_lanes(out + first, n > 16 ? sum : mul(sum, norm), run);
  }
  for (int32_t half = 16; half < n; half *= 2) {
    for (int32_t first = 0; first < n; first += 2 * half) {
      for (int32_t i = first; i < first + half; i += 16) {
        const Vec a = load(out + i), b = load(out + i + half);
        const Vec sum = add(a, b), difference = sub(a, b);
        store(out + i, 2 * half < n ? sum : mul(sum, norm));
        store(out + i + half, 2 * half < n ? difference : mul(difference, norm));
      }
    }
  }
}

// Multiplies by the Hadamard matrix of the largest power of two that fits, the rest by smaller ones. Orthogonal: scores
// of rotated queries and keys are those of the queries and keys themselves.
inline void rotate(const float* x, int32_t size, float* out) {
  for (int32_t done = 0; done < size;) {
    int32_t n = 1;
    while (2 * n <= size - done) n *= 2;
    rotate_power(x + done, n, out + done);
    done += n;
  }
}

// The nearest 8-bit float, ties to even, of a number within its range. 2^-14 is the smallest normal one as loaded.
template <int kMantissaBits>
inline uint8_t float8_code(float x) {
  constexpr uint32_t kShift = 23 - kMantissaBits;
  constexpr float kMagic = 1 << (9 - kMantissaBits);  // its neighbours are as far apart as subnormal codes
  const uint32_t bits = __builtin_bit_cast(uint32_t, x), magnitude = bits & 0x7fffffff;
  const uint32_t small = __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, magnitude) + kMagic) -
                         __builtin_bit_cast(uint32_t, kMagic);
  const uint32_t normal =
      (magnitude - (112u << 23) + (1u << (kShift - 1)) - 1 + ((magnitude >> kShift) & 1)) >> kShift;
  return static_cast<uint8_t>((bits >> 24 & 0x80) | (magnitude < 0x38800000 ? small : normal));
}

template <KVCode kCode>
inline uint8_t code_of(float x) {
  if constexpr (kCode == KVCode::kE4m3) return float8_code<3>(x);
  if constexpr (kCode == KVCode::kE5m2) return float8_code<2>(x);
  return static_cast<uint8_t>(static_cast<int32_t>(x));
}

struct Factors {
  uint16_t scale, minimum;
};

// Rounds a group of at most kKVGroup channels. What holds a NaN or an infinity reads as NaN.
template <KVCode kCode>
inline Factors encode_group(const float* x, int32_t size, uint8_t* codes) {
  float lanes[kKVGroup];
  for (int32_t i = 0; i < kKVGroup; ++i) lanes[i] = x[i < size ? i : 0];  // changes no extreme
  Vec lowest = load(lanes), highest = lowest, check = zero();
  for (int32_t i = 0; i < kKVGroup; i += 16) {
    const Vec v = load(lanes + i);
    lowest = min(v, lowest);
    highest = max(v, highest);
    check = fma(v, zero(), check);
  }
  if (!(reduce_add(check) == 0.0f)) {
    for (int32_t i = 0; i < size; ++i) codes[i] = 0;
    return {kHalfNaN, 0};
  }
  const float high = reduce_max(highest), low = -reduce_max(sub(zero(), lowest));
  float minimum = 0.0f, extent = (high > -low ? high : -low) + 0.0f;  // never -0
  if constexpr (has_minimum(kCode)) {
    minimum = low < -kLargestHalf ? -kLargestHalf : low > kLargestHalf ? kLargestHalf : low;
    minimum = f16_to_f32(f32_to_f16(minimum)) + 0.0f;
    extent = high > minimum ? high - minimum : 0.0f;
  }
  const float wanted = extent / (kLargest<kCode> * kUnit<kCode>);
  const uint16_t scale = f32_to_f16(wanted < kLargestHalf ? wanted : kLargestHalf);
  const float step = f16_to_f32(scale) * kUnit<kCode>;
  const Vec divisor = splat(step > 0.0f ? step : 1.0f);
  const Vec bottom = splat(has_minimum(kCode) ? 0.0f : -kLargest<kCode>), top = splat(kLargest<kCode>);
  for (int32_t i = 0; i < kKVGroup; i += 16) {
    Vec v = div(sub(load(lanes + i), splat(minimum)), divisor);
    v = min(max(v, bottom), top);
    if constexpr (kCode == KVCode::kInt8 || kCode == KVCode::kUint4) v = round(v);
    store(lanes + i, v);
  }
  for (int32_t i = 0; i < size; ++i) codes[i] = code_of<kCode>(lanes[i]);
  return {scale, f32_to_f16(minimum)};
}

template <KVCode kCode>
inline void write_factors(Factors factors, std::byte* side, int32_t head_dim, int32_t group, int32_t place) {
  reinterpret_cast<uint16_t*>(side + scales_at<kCode>(head_dim, group))[place] = factors.scale;
  if constexpr (has_minimum(kCode)) {
    reinterpret_cast<uint16_t*>(side + minima_at<kCode>(head_dim, group))[place] = factors.minimum;
  }
}

template <KVCode kCode>
inline void write_key(const float* k, int32_t head_dim, int32_t place, std::byte* side) {
  if constexpr (!has_scale(kCode)) {
    using Code = typename FloatCode<kCode>::Type;
    Code* codes = reinterpret_cast<Code*>(side);
    for_lanes(head_dim, [&](int32_t i, int32_t n) {
      Code column[16];
      store_kv_part(column, load_lanes(k + i, n), n);
      for (int32_t c = 0; c < n; ++c) codes[(i + c) * kBlockSize + place] = column[c];
    });
  } else {
    uint8_t* codes = reinterpret_cast<uint8_t*>(side) + place;
    for (int32_t first = 0; first < head_dim; first += kKVGroup) {
      const int32_t size = head_dim - first < kKVGroup ? head_dim - first : kKVGroup;
      uint8_t group[kKVGroup + 1] = {};
      const Factors factors = encode_group<kCode>(k + first, size, group);
      write_factors<kCode>(factors, side, head_dim, first / kKVGroup, place);
      if constexpr (kCode == KVCode::kUint4) {  // two channels a byte, so that no byte has two tokens
        for (int32_t c = 0; c < size; c += 2) {
          codes[(first + c) / 2 * kBlockSize] = static_cast<uint8_t>(group[c] | group[c + 1] << 4);
        }
      } else {
        for (int32_t c = 0; c < size; ++c) codes[(first + c) * kBlockSize] = group[c];
      }
    }
  }
}

template <KVCode kCode>
inline void write_value(const float* v, int32_t head_dim, int32_t place, std::byte* side) {
  std::byte* row = side + place * row_bytes(kCode, head_dim);
  if constexpr (!has_scale(kCode)) {
    auto* codes = reinterpret_cast<typename FloatCode<kCode>::Type*>(row);
    for_lanes(head_dim, [&](int32_t i, int32_t n) { store_kv_part(codes + i, load_lanes(v + i, n), n); });
  } else {
    uint8_t* codes = reinterpret_cast<uint8_t*>(row);
    for (int32_t first = 0; first < head_dim; first += kKVGroup) {
      const int32_t size = head_dim - first < kKVGroup ? head_dim - first : kKVGroup;
      uint8_t group[kKVGroup] = {};
      const Factors factors = encode_group<kCode>(v + first, size, group);
      write_factors<kCode>(factors, side, head_dim, first / kKVGroup, place);
      if constexpr (kCode == KVCode::kUint4) {
        for (int32_t c = 0; c < size; c += 16) {
          for (int32_t i = 0; i < 8; ++i) {
            codes[(first + c) / 2 + i] = static_cast<uint8_t>(group[c + i] | group[c + i + 8] << 4);
          }
        }
      } else {
        for (int32_t c = 0; c < size; ++c) codes[first + c] = group[c];
      }
    }
  }
}

// The keys of a head in a block; its values follow them.
template <KVCode kKeys, KVCode kValues>
inline std::byte* head_of(const KVLayer& layer, int32_t block, int32_t head) {
  std::byte* base = layer.pool + static_cast<size_t>(block) * layer.block_bytes + layer.layer_offset;
  return base + head * (side_bytes(kKeys, layer.head_dim) + side_bytes(kValues, layer.head_dim));
}

template <KVCode kKeys, KVCode kValues>
inline void write_tokens(const KVLayer& layer, const KVRows& rows, const int32_t* slots, int32_t num_tokens) {
  for (int32_t t = 0; t < num_tokens; ++t) {
    const int32_t place = slots[t] % kBlockSize;
    const float* k = rows.keys + t * rows.key_stride;
    const float* v = rows.values + t * rows.value_stride;
    for (int32_t h = 0; h < layer.num_kv_heads; ++h, k += layer.head_dim, v += layer.head_dim) {
      std::byte* side = head_of<kKeys, kValues>(layer, slots[t] / kBlockSize, h);
      float rotated[kMaxHeadDim];
      if constexpr (kKeys == KVCode::kUint4) rotate(k, layer.head_dim, rotated);
      write_key<kKeys>(kKeys == KVCode::kUint4 ? rotated : k, layer.head_dim, place, side);
      write_value<kValues>(v, layer.head_dim, place, side + side_bytes(kKeys, layer.head_dim));
    }
  }
}

// Calls f.operator()<key code, value code>() for a layer's type.
template <typename Function>
inline void with_codes(KVType type, Function f) {
  switch (type) {
    case KVType::F16: return f.template operator()<KVCode::F16, KVCode::F16>();
    case KVType::BF16: return f.template operator()<KVCode::BF16, KVCode::BF16>();
    case KVType::F32: return f.template operator()<KVCode::F32, KVCode::F32>();
    case KVType::kInt8: return f.template operator()<KVCode::kInt8, KVCode::kInt8>();
    case KVType::kE4m3: return f.template operator()<KVCode::kE4m3, KVCode::kE4m3>();
    case KVType::kE5m2: return f.template operator()<KVCode::kE5m2, KVCode::kE5m2>();
    case KVType::kInt8Int4: return f.template operator()<KVCode::kInt8, KVCode::kUint4>();
    case KVType::kInt4: return f.template operator()<KVCode::kUint4, KVCode::kUint4>();
  }
}

void write_kv(const KVLayer& layer, const KVRows& rows, const int32_t* slots, int32_t num_tokens) {
  with_codes(layer.type, [&]<KVCode kKeys, KVCode kValues>() {
    write_tokens<kKeys, kValues>(layer, rows, slots, num_tokens);
  });
}
