// Sixteen float32 lanes, spelled once for every instruction set.
//
// Every kernel in ops/ is compiled once per instruction set with TRIOLET_ISA set to the name of a
// namespace, so that the linker can never take the AVX-512 copy of an inline function for a CPU
// that lacks it. Two rules keep it so: everything in these files lives in that namespace, and
// per-ISA code uses no standard container.
//
// Sixteen logical lanes everywhere (one AVX-512 register, two AVX ones, an array) keep the order
// of every sum the same on all of them.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "common/types.h"

#ifndef TRIOLET_ISA
#error "compile with -DTRIOLET_ISA=<namespace>"
#endif

#define TRIOLET_INLINE inline __attribute__((always_inline))

#if defined(__AVX512F__)
#include "isa/simd_avx512.h"
#elif defined(__AVX2__)
#include "isa/simd_avx2.h"
#else
#include "isa/simd_portable.h"
#endif

namespace triolet::TRIOLET_ISA {

inline constexpr int kLanes = 16;
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

TRIOLET_INLINE F16 zero() { return splat(0.0f); }

// The first n lanes (0 <= n <= 16) of memory; the other lanes are 0 and their memory is not read.
template <class T>
TRIOLET_INLINE F16 load_some(const T* from, int64_t n) {
    if (n >= kLanes) return load(from);
    T buffer[kLanes] = {};
    for (int64_t i = 0; i < n; i++) buffer[i] = from[i];
    return load(buffer);
}

template <class T>
TRIOLET_INLINE void store_some(T* to, F16 x, int64_t n) {
    if (n >= kLanes) return store(to, x);
    T buffer[kLanes];
    store(buffer, x);
    for (int64_t i = 0; i < n; i++) to[i] = buffer[i];
}

// exp(x), relative error about 1e-7 (Cephes expf polynomial); exactly 0 below -87.3, where the
// result would be subnormal, and so for -infinity.
TRIOLET_INLINE F16 exp(F16 x) {
    const F16 floor = splat(-87.3f);
    const uint32_t normal = mask_ge(x, floor);
    x = min(max(x, floor), splat(88.7f));
    const F16 n = round_even(x * splat(1.44269504089f));
    // ln 2 in two parts: n * high is exact.
    F16 r = fma(n, splat(-0.693359375f), x);
    r = fma(n, splat(2.12194440e-4f), r);
    F16 p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    p = fma(p, r * r, r + splat(1.0f));
    return keep(normal, multiply_by_power_of_two(p, n));
}

// tanh(x) = 1 - 2 / (exp(2 x) + 1); exact at both infinities.
TRIOLET_INLINE F16 tanh(F16 x) {
    const F16 one = splat(1.0f);
    return one - splat(2.0f) * reciprocal(exp(x + x) + one);
}

TRIOLET_INLINE F16 abs(F16 x) { return max(x, zero() - x); }

}  // namespace triolet::TRIOLET_ISA
