// F16 as one AVX-512 register. Included by simd.h only.
#pragma once

#include <immintrin.h>

namespace triolet::TRIOLET_ISA {

struct F16 {
    __m512 v;
};

TRIOLET_INLINE F16 splat(float x) { return {_mm512_set1_ps(x)}; }
TRIOLET_INLINE F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
TRIOLET_INLINE F16 load(const bf16* p) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
TRIOLET_INLINE void store(float* p, F16 x) { _mm512_storeu_ps(p, x.v); }

// Integer rounding instead of vcvtneps2bf16: it keeps subnormals, and so the same bits everywhere.
TRIOLET_INLINE void store(bf16* p, F16 x) {
    const __m512i word = _mm512_castps_si512(x.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(word, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(word, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, word, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}

// Thirty-two bf16: the even ones and the odd ones.
TRIOLET_INLINE void load_pairs(const bf16* p, F16& even, F16& odd) {
    const __m512i words = _mm512_loadu_si512(p);
    even.v = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
    odd.v = _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(-65536)));
}

TRIOLET_INLINE F16 operator+(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
TRIOLET_INLINE F16 operator-(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
TRIOLET_INLINE F16 operator*(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
TRIOLET_INLINE F16 operator/(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
// 1 / x to about 2^-28 for normal x: a quarter of the time of a division.
TRIOLET_INLINE F16 reciprocal(F16 x) {
    const __m512 guess = _mm512_rcp14_ps(x.v);
    return {_mm512_mul_ps(guess, _mm512_fnmadd_ps(x.v, guess, _mm512_set1_ps(2.0f)))};
}
TRIOLET_INLINE F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
TRIOLET_INLINE F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
TRIOLET_INLINE F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
TRIOLET_INLINE F16 round_even(F16 x) { return {_mm512_roundscale_ps(x.v, 0)}; }
TRIOLET_INLINE F16 multiply_by_power_of_two(F16 x, F16 n) { return {_mm512_scalef_ps(x.v, n.v)}; }
TRIOLET_INLINE float reduce_add(F16 x) { return _mm512_reduce_add_ps(x.v); }
TRIOLET_INLINE float reduce_max(F16 x) { return _mm512_reduce_max_ps(x.v); }

// One bit per lane, lane 0 lowest; false where a lane is NaN.
TRIOLET_INLINE uint32_t mask_ge(F16 a, F16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ); }
TRIOLET_INLINE uint32_t mask_gt(F16 a, F16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
TRIOLET_INLINE uint32_t mask_eq(F16 a, F16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ); }
// The lanes of x whose bit is set; 0 in the others.
TRIOLET_INLINE F16 keep(uint32_t mask, F16 x) {
    return {_mm512_maskz_mov_ps(static_cast<__mmask16>(mask), x.v)};
}

// Nearest integers of 16 lanes (|x| <= 127), as signed bytes.
TRIOLET_INLINE void store_rounded(int8_t* p, F16 x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x.v)));
}

struct I16 {
    __m512i v;
};

TRIOLET_INLINE I16 splat_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
TRIOLET_INLINE I16 load_int(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
TRIOLET_INLINE void store_int(int32_t* p, I16 x) { _mm512_storeu_si512(p, x.v); }
TRIOLET_INLINE I16 operator-(I16 a, I16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
TRIOLET_INLINE F16 to_floats(I16 x) { return {_mm512_cvtepi32_ps(x.v)}; }

// Sixty-four bytes of weights, and the low and high nibbles of sixty-four bytes.
struct Bytes64 {
    __m512i v;
};

TRIOLET_INLINE Bytes64 load_bytes(const void* p) { return {_mm512_loadu_si512(p)}; }
TRIOLET_INLINE Bytes64 low_nibbles(Bytes64 x) {
    return {_mm512_and_si512(x.v, _mm512_set1_epi8(15))};
}
TRIOLET_INLINE Bytes64 high_nibbles(Bytes64 x) {
    return {_mm512_and_si512(_mm512_srli_epi16(x.v, 4), _mm512_set1_epi8(15))};
}

#if defined(__AVX512VNNI__)

// acc[lane] += sum over j < 4 of activations[j] * weights[4 lane + j]; exact. Not the intrinsic:
// GCC 12 spills the accumulators of a loop that uses it.
TRIOLET_INLINE I16 dot4(I16 acc, const uint8_t* activations, Bytes64 weights) {
    int32_t four;
    __builtin_memcpy(&four, activations, 4);
    const __m512i x = _mm512_set1_epi32(four);
    asm("vpdpbusd %1, %2, %0" : "+v"(acc.v) : "v"(weights.v), "v"(x));
    return acc;
}
// The same with signed activations and unsigned weights.
TRIOLET_INLINE I16 dot4_unsigned_weights(I16 acc, const int8_t* activations, Bytes64 weights) {
    int32_t four;
    __builtin_memcpy(&four, activations, 4);
    const __m512i x = _mm512_set1_epi32(four);
    asm("vpdpbusd %1, %2, %0" : "+v"(acc.v) : "v"(x), "v"(weights.v));
    return acc;
}

#else

// vpmaddubsw would saturate (255 * 127 * 2 > 32767): all is widened to 16 bits first. The four
// products of a lane are then two neighbouring 32-bit sums, in the low or the high half.
TRIOLET_INLINE I16 dot4_words(I16 acc, __m512i activations, __m512i low_weights, __m512i high_weights) {
    const __m512i low = _mm512_madd_epi16(low_weights, activations);
    const __m512i high = _mm512_madd_epi16(high_weights, activations);
    const __m512i even_of = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd_of = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    const __m512i even = _mm512_permutex2var_epi32(low, even_of, high);
    const __m512i odd = _mm512_permutex2var_epi32(low, odd_of, high);
    return {_mm512_add_epi32(acc.v, _mm512_add_epi32(even, odd))};
}
// acc[lane] += sum over j < 4 of activations[j] * weights[4 lane + j]; exact.
TRIOLET_INLINE I16 dot4(I16 acc, const uint8_t* activations, Bytes64 weights) {
    int32_t four;
    __builtin_memcpy(&four, activations, 4);
    return dot4_words(acc, _mm512_cvtepu8_epi16(_mm256_set1_epi32(four)),
                      _mm512_cvtepi8_epi16(_mm512_castsi512_si256(weights.v)),
                      _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(weights.v, 1)));
}
// The same with signed activations and unsigned weights.
TRIOLET_INLINE I16 dot4_unsigned_weights(I16 acc, const int8_t* activations, Bytes64 weights) {
    int32_t four;
    __builtin_memcpy(&four, activations, 4);
    return dot4_words(acc, _mm512_cvtepi8_epi16(_mm256_set1_epi32(four)),
                      _mm512_cvtepu8_epi16(_mm512_castsi512_si256(weights.v)),
                      _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(weights.v, 1)));
}

#endif

}  // namespace triolet::TRIOLET_ISA
