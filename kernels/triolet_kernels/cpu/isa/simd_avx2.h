// F16 as two AVX registers (AVX2 and FMA). Included by simd.h only.
#pragma once

#include <immintrin.h>

namespace triolet::TRIOLET_ISA {

struct F16 {
    __m256 lo, hi;
};

TRIOLET_INLINE F16 splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
TRIOLET_INLINE F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
TRIOLET_INLINE __m256 widen_bf16(const bf16* p) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
TRIOLET_INLINE F16 load(const bf16* p) { return {widen_bf16(p), widen_bf16(p + 8)}; }
TRIOLET_INLINE void store(float* p, F16 x) {
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
}
TRIOLET_INLINE __m256i round_to_bf16(__m256 x) {
    const __m256i word = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(word, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(word, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(word, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}
TRIOLET_INLINE void store(bf16* p, F16 x) {
    // packus works within 128-bit halves; the permutation restores the order of the lanes.
    const __m256i packed = _mm256_packus_epi32(round_to_bf16(x.lo), round_to_bf16(x.hi));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}

TRIOLET_INLINE void load_pairs(const bf16* p, F16& even, F16& odd) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
    const __m256i upper = _mm256_set1_epi32(-65536);
    even = {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
    odd = {_mm256_castsi256_ps(_mm256_and_si256(a, upper)), _mm256_castsi256_ps(_mm256_and_si256(b, upper))};
}

TRIOLET_INLINE F16 operator+(F16 a, F16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
TRIOLET_INLINE F16 operator-(F16 a, F16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
TRIOLET_INLINE F16 operator*(F16 a, F16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
TRIOLET_INLINE F16 operator/(F16 a, F16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
TRIOLET_INLINE F16 reciprocal(F16 x) { return splat(1.0f) / x; }
TRIOLET_INLINE F16 fma(F16 a, F16 b, F16 c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
TRIOLET_INLINE F16 max(F16 a, F16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
TRIOLET_INLINE F16 min(F16 a, F16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
TRIOLET_INLINE F16 round_even(F16 x) {
    return {_mm256_round_ps(x.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
            _mm256_round_ps(x.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// -126 <= n <= 128; 128 gives infinity.
TRIOLET_INLINE __m256 power_of_two(__m256 n) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
TRIOLET_INLINE F16 multiply_by_power_of_two(F16 x, F16 n) {
    return x * F16{power_of_two(n.lo), power_of_two(n.hi)};
}
TRIOLET_INLINE float reduce_add(F16 x) {
    const __m256 eight = _mm256_add_ps(x.lo, x.hi);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
TRIOLET_INLINE float reduce_max(F16 x) {
    const __m256 eight = _mm256_max_ps(x.lo, x.hi);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

template <int kCompare>
TRIOLET_INLINE uint32_t compare(F16 a, F16 b) {
    const auto low = static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, kCompare)));
    const auto high = static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, kCompare)));
    return low | high << 8;
}
TRIOLET_INLINE uint32_t mask_ge(F16 a, F16 b) { return compare<_CMP_GE_OQ>(a, b); }
TRIOLET_INLINE uint32_t mask_gt(F16 a, F16 b) { return compare<_CMP_GT_OQ>(a, b); }
TRIOLET_INLINE uint32_t mask_eq(F16 a, F16 b) { return compare<_CMP_EQ_OQ>(a, b); }
TRIOLET_INLINE __m256 keep_eight(uint32_t mask, __m256 x) {
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(mask)), bit);
    return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, bit)));
}
TRIOLET_INLINE F16 keep(uint32_t mask, F16 x) {
    return {keep_eight(mask & 0xff, x.lo), keep_eight(mask >> 8, x.hi)};
}

TRIOLET_INLINE void store_rounded(int8_t* p, F16 x) {
    const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi));
    const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1)));
}

struct I16 {
    __m256i lo, hi;
};

TRIOLET_INLINE I16 splat_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
TRIOLET_INLINE I16 load_int(const int32_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
TRIOLET_INLINE void store_int(int32_t* p, I16 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.lo);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.hi);
}
TRIOLET_INLINE I16 operator-(I16 a, I16 b) {
    return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
TRIOLET_INLINE F16 to_floats(I16 x) { return {_mm256_cvtepi32_ps(x.lo), _mm256_cvtepi32_ps(x.hi)}; }

struct Bytes64 {
    __m256i lo, hi;
};

TRIOLET_INLINE Bytes64 load_bytes(const void* p) {
    const auto* words = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(words), _mm256_loadu_si256(words + 1)};
}
TRIOLET_INLINE Bytes64 low_nibbles(Bytes64 x) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(x.lo, mask), _mm256_and_si256(x.hi, mask)};
}
TRIOLET_INLINE Bytes64 high_nibbles(Bytes64 x) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(_mm256_srli_epi16(x.lo, 4), mask),
            _mm256_and_si256(_mm256_srli_epi16(x.hi, 4), mask)};
}

// Eight lanes: vpmaddubsw would saturate (255 * 127 * 2 > 32767), so all is widened to 16 bits.
TRIOLET_INLINE __m256i dot4_eight(__m256i acc, __m256i activations, __m256i low_weights, __m256i high_weights) {
    const __m256i low = _mm256_madd_epi16(low_weights, activations);
    const __m256i high = _mm256_madd_epi16(high_weights, activations);
    const __m256i mixed = _mm256_hadd_epi32(low, high);  // per 128-bit half: two of low, two of high
    return _mm256_add_epi32(acc, _mm256_permute4x64_epi64(mixed, 0xd8));
}
// acc[lane] += sum over j < 4 of activations[j] * weights[4 lane + j]; exact.
TRIOLET_INLINE I16 dot4(I16 acc, const uint8_t* activations, Bytes64 weights) {
    int32_t four;
    __builtin_memcpy(&four, activations, 4);
    const __m256i x = _mm256_cvtepu8_epi16(_mm_set1_epi32(four));
    const auto widen = [](__m128i half) { return _mm256_cvtepi8_epi16(half); };
    return {dot4_eight(acc.lo, x, widen(_mm256_castsi256_si128(weights.lo)), widen(_mm256_extracti128_si256(weights.lo, 1))),
            dot4_eight(acc.hi, x, widen(_mm256_castsi256_si128(weights.hi)), widen(_mm256_extracti128_si256(weights.hi, 1)))};
}
// The same with signed activations and unsigned weights.
TRIOLET_INLINE I16 dot4_unsigned_weights(I16 acc, const int8_t* activations, Bytes64 weights) {
    int32_t four;
    __builtin_memcpy(&four, activations, 4);
    const __m256i x = _mm256_cvtepi8_epi16(_mm_set1_epi32(four));
    const auto widen = [](__m128i half) { return _mm256_cvtepu8_epi16(half); };
    return {dot4_eight(acc.lo, x, widen(_mm256_castsi256_si128(weights.lo)), widen(_mm256_extracti128_si256(weights.lo, 1))),
            dot4_eight(acc.hi, x, widen(_mm256_castsi256_si128(weights.hi)), widen(_mm256_extracti128_si256(weights.hi, 1)))};
}

}  // namespace triolet::TRIOLET_ISA
