// F16 as an array: any CPU; the compiler vectorizes what it can. Included by simd.h only.
#pragma once

#include <cstring>

namespace triolet::TRIOLET_ISA {

struct F16 {
    float v[16];
};

// lane -> expression of `i`
#define TRIOLET_LANES(expression)                       \
    F16 result;                                         \
    for (int i = 0; i < 16; i++) result.v[i] = (expression); \
    return result

TRIOLET_INLINE F16 splat(float x) { TRIOLET_LANES(x); }
TRIOLET_INLINE F16 load(const float* p) { TRIOLET_LANES(p[i]); }
TRIOLET_INLINE F16 load(const bf16* p) { TRIOLET_LANES(to_float(p[i])); }
TRIOLET_INLINE void store(float* p, F16 x) { std::memcpy(p, x.v, sizeof x.v); }
TRIOLET_INLINE void store(bf16* p, F16 x) {
    for (int i = 0; i < 16; i++) p[i] = to_bf16(x.v[i]);
}
TRIOLET_INLINE void load_pairs(const bf16* p, F16& even, F16& odd) {
    for (int i = 0; i < 16; i++) {
        even.v[i] = to_float(p[2 * i]);
        odd.v[i] = to_float(p[2 * i + 1]);
    }
}
TRIOLET_INLINE F16 operator+(F16 a, F16 b) { TRIOLET_LANES(a.v[i] + b.v[i]); }
TRIOLET_INLINE F16 operator-(F16 a, F16 b) { TRIOLET_LANES(a.v[i] - b.v[i]); }
TRIOLET_INLINE F16 operator*(F16 a, F16 b) { TRIOLET_LANES(a.v[i] * b.v[i]); }
TRIOLET_INLINE F16 operator/(F16 a, F16 b) { TRIOLET_LANES(a.v[i] / b.v[i]); }
TRIOLET_INLINE F16 reciprocal(F16 x) { return splat(1.0f) / x; }
TRIOLET_INLINE F16 fma(F16 a, F16 b, F16 c) { TRIOLET_LANES(a.v[i] * b.v[i] + c.v[i]); }
TRIOLET_INLINE F16 max(F16 a, F16 b) { TRIOLET_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
TRIOLET_INLINE F16 min(F16 a, F16 b) { TRIOLET_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
// Adding and taking away 1.5 * 2^23 rounds to an integer, for |x| < 2^22.
TRIOLET_INLINE float round_one(float x) {
    const volatile float shifted = x + 12582912.0f;
    return shifted - 12582912.0f;
}
TRIOLET_INLINE F16 round_even(F16 x) { TRIOLET_LANES(round_one(x.v[i])); }
TRIOLET_INLINE float power_of_two(float n) {
    const uint32_t word = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;
    float value;
    std::memcpy(&value, &word, sizeof value);
    return value;
}
TRIOLET_INLINE F16 multiply_by_power_of_two(F16 x, F16 n) { TRIOLET_LANES(x.v[i] * power_of_two(n.v[i])); }
#undef TRIOLET_LANES

TRIOLET_INLINE float reduce_add(F16 x) {
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; i++) x.v[i] += x.v[i + width];
    return x.v[0];
}
TRIOLET_INLINE float reduce_max(F16 x) {
    float best = x.v[0];
    for (int i = 1; i < 16; i++) best = x.v[i] > best ? x.v[i] : best;
    return best;
}

template <class Compare>
TRIOLET_INLINE uint32_t compare(F16 a, F16 b, Compare holds) {
    uint32_t mask = 0;
    for (int i = 0; i < 16; i++) mask |= static_cast<uint32_t>(holds(a.v[i], b.v[i])) << i;
    return mask;
}
TRIOLET_INLINE uint32_t mask_ge(F16 a, F16 b) {
    return compare(a, b, [](float x, float y) { return x >= y; });
}
TRIOLET_INLINE uint32_t mask_gt(F16 a, F16 b) {
    return compare(a, b, [](float x, float y) { return x > y; });
}
TRIOLET_INLINE uint32_t mask_eq(F16 a, F16 b) {
    return compare(a, b, [](float x, float y) { return x == y; });
}
TRIOLET_INLINE F16 keep(uint32_t mask, F16 x) {
    for (int i = 0; i < 16; i++) x.v[i] = (mask >> i & 1u) != 0 ? x.v[i] : 0.0f;
    return x;
}
TRIOLET_INLINE void store_rounded(int8_t* p, F16 x) {
    for (int i = 0; i < 16; i++) p[i] = static_cast<int8_t>(round_one(x.v[i]));
}

struct I16 {
    int32_t v[16];
};

TRIOLET_INLINE I16 splat_int(int32_t x) {
    I16 result;
    for (int32_t& lane : result.v) lane = x;
    return result;
}
TRIOLET_INLINE I16 load_int(const int32_t* p) {
    I16 result;
    std::memcpy(result.v, p, sizeof result.v);
    return result;
}
TRIOLET_INLINE void store_int(int32_t* p, I16 x) { std::memcpy(p, x.v, sizeof x.v); }
TRIOLET_INLINE I16 operator-(I16 a, I16 b) {
    for (int i = 0; i < 16; i++) a.v[i] -= b.v[i];
    return a;
}
TRIOLET_INLINE F16 to_floats(I16 x) {
    F16 result;
    for (int i = 0; i < 16; i++) result.v[i] = static_cast<float>(x.v[i]);
    return result;
}

struct Bytes64 {
    int8_t v[64];
};

TRIOLET_INLINE Bytes64 load_bytes(const void* p) {
    Bytes64 result;
    std::memcpy(result.v, p, sizeof result.v);
    return result;
}
TRIOLET_INLINE Bytes64 low_nibbles(Bytes64 x) {
    for (int8_t& byte : x.v) byte = static_cast<int8_t>(byte & 15);
    return x;
}
TRIOLET_INLINE Bytes64 high_nibbles(Bytes64 x) {
    for (int8_t& byte : x.v) byte = static_cast<int8_t>(static_cast<uint8_t>(byte) >> 4);
    return x;
}
// acc[lane] += sum over j < 4 of activations[j] * weights[4 lane + j]; exact.
TRIOLET_INLINE I16 dot4(I16 acc, const uint8_t* activations, Bytes64 weights) {
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 4; j++) acc.v[i] += activations[j] * weights.v[4 * i + j];
    return acc;
}

// The same with signed activations and unsigned weights.
TRIOLET_INLINE I16 dot4_unsigned_weights(I16 acc, const int8_t* activations, Bytes64 weights) {
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 4; j++) acc.v[i] += activations[j] * static_cast<uint8_t>(weights.v[4 * i + j]);
    return acc;
}

}  // namespace triolet::TRIOLET_ISA
