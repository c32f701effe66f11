// Element types and small integer helpers shared by every kernel.
#pragma once

#include <cstdint>
#include <cstring>

namespace triolet {

// Upper half of an IEEE float32. A struct, so that arithmetic on the raw bits cannot compile.
struct bf16 {
    uint16_t bits;
};

inline float to_float(float x) { return x; }

inline float to_float(bf16 x) {
    const uint32_t word = static_cast<uint32_t>(x.bits) << 16;
    float value;
    std::memcpy(&value, &word, sizeof value);
    return value;
}

// Round to nearest, ties to even; a NaN stays a NaN (plain rounding could carry into infinity).
inline bf16 to_bf16(float x) {
    uint32_t word;
    std::memcpy(&word, &x, sizeof word);
    if ((word & 0x7fffffffu) > 0x7f800000u) return bf16{static_cast<uint16_t>((word >> 16) | 0x40u)};
    word += 0x7fffu + ((word >> 16) & 1u);
    return bf16{static_cast<uint16_t>(word >> 16)};
}

inline void assign(float& to, float from) { to = from; }
inline void assign(bf16& to, float from) { to = to_bf16(from); }

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
constexpr int64_t ceil_div(int64_t n, int64_t d) { return (n + d - 1) / d; }
constexpr int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

}  // namespace triolet
