// Activations as bytes: per row, the largest magnitude becomes 127.
#pragma once

#include "common/kernel_table.h"
#include "isa/simd.h"

namespace triolet::TRIOLET_ISA {

// q[0, stride) = round(x * 127 / max |x|), zeros beyond k; returns the scale max |x| / 127. A NaN
// or infinity makes the scale, and so every output of the row, not a number.
template <class T>
inline float quantize_row(const T* x, int64_t k, int8_t* q, int64_t stride) {
    F16 largest = zero();
    F16 poison = zero();  // 0, or NaN once an infinity or NaN has been seen
    for (int64_t i = 0; i < k; i += kLanes) {
        const F16 value = load_some(x + i, k - i);
        largest = max(abs(value), largest);
        poison = fma(value, zero(), poison);
    }
    const float size = reduce_max(largest), bad = reduce_add(poison);
    const F16 inverse = splat(size > 0.0f && bad == 0.0f ? 127.0f / size : 0.0f);
    for (int64_t i = 0; i < stride; i += kLanes) {
        const F16 value = i < k && bad == 0.0f ? load_some(x + i, k - i) : zero();
        store_rounded(q + i, value * inverse);
    }
    return size / 127.0f + bad;
}

// The same with 128 added: the unsigned bytes that the dot product instructions take.
inline void add_128(int8_t* q, int64_t count) {
    for (int64_t i = 0; i < count; i += 8) {
        uint64_t eight;
        __builtin_memcpy(&eight, q + i, 8);
        eight ^= 0x8080808080808080u;
        __builtin_memcpy(q + i, &eight, 8);
    }
}

template <class Body>
inline void with_dtype(DType dtype, Body&& body) {
    if (dtype == DType::kFloat32)
        body(float{});
    else
        body(bf16{});
}

}  // namespace triolet::TRIOLET_ISA
