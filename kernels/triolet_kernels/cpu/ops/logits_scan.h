// A row of logits cut into blocks of 256: finding what is large without visiting everything.
#pragma once

#include "common/scratch.h"
#include "isa/simd.h"

namespace triolet::TRIOLET_ISA {

inline constexpr int64_t kBlockLogits = 256;

// A value of its own type, so that sorting it makes code of this instruction set only (simd.h).
struct BlockMaximum {
    float value;
};

struct Candidate {
    float value;
    int32_t id;
    // Best first: larger values, then smaller ids.
    static bool better(const Candidate& a, const Candidate& b) {
        return a.value > b.value || (a.value == b.value && a.id < b.id);
    }
};

inline int64_t block_count(int64_t n) { return ceil_div(n, kBlockLogits); }

// Loads lanes [i, i + 16) of a row; what lies beyond it is -infinity.
TRIOLET_INLINE F16 load_logits(const float* x, int64_t i, int64_t n) {
    const int64_t left = n - i;
    if (left >= kLanes) return load(x + i);
    const uint32_t inside = (1u << left) - 1u;
    return load_some(x + i, left) + keep(~inside & 0xffffu, splat(-kInfinity));
}

// Largest logit of each block, NaN counting as -infinity. Returns the largest of all, and whether
// there is a NaN.
struct RowMaximum {
    float value;
    bool has_nan;
};
inline RowMaximum block_maxima(const float* x, int64_t n, BlockMaximum* maxima) {
    float largest = -kInfinity;
    uint32_t numbers = 0xffffu;
    for (int64_t block = 0; block < block_count(n); block++) {
        const int64_t begin = block * kBlockLogits, end = min64(begin + kBlockLogits, n);
        F16 best = splat(-kInfinity);
        // max(x, best) returns best where x is NaN.
        for (int64_t i = begin; i < end; i += kLanes) {
            const F16 lanes = load_logits(x, i, n);
            numbers &= mask_eq(lanes, lanes);
            best = max(lanes, best);
        }
        maxima[block].value = reduce_max(best);
        largest = maxima[block].value > largest ? maxima[block].value : largest;
    }
    return {largest, numbers != 0xffffu};
}

// First id whose logit is `value`, or 0.
inline int64_t first_equal(const float* x, int64_t n, float value, const BlockMaximum* maxima) {
    for (int64_t block = 0; block < block_count(n); block++) {
        if (maxima[block].value != value) continue;
        for (int64_t i = block * kBlockLogits; i < n; i += kLanes)
            if (const uint32_t hits = mask_eq(load_logits(x, i, n), splat(value)); hits != 0)
                return i + __builtin_ctz(hits);
    }
    return 0;
}

// Calls body(id) for every logit >= limit, in the order of ids.
template <class Body>
inline void for_each_at_least(const float* x, int64_t n, float limit, const BlockMaximum* maxima, Body&& body) {
    for (int64_t block = 0; block < block_count(n); block++) {
        if (!(maxima[block].value >= limit)) continue;
        const int64_t begin = block * kBlockLogits, end = min64(begin + kBlockLogits, n);
        for (int64_t i = begin; i < end; i += kLanes)
            for (uint32_t hits = mask_ge(load_logits(x, i, n), splat(limit)); hits != 0; hits &= hits - 1) {
                const int64_t id = i + __builtin_ctz(hits);
                if (id < n) body(id);
            }
    }
}

}  // namespace triolet::TRIOLET_ISA
