// c[r][n] = sum over k of a[r][k] * b[k][n] in int32: unsigned bytes times signed ones, exact, so
// that every instruction set and every order gives the same bits.
//
// b is a packed panel of 64 columns, [depth / 4][64][4]; a row of a is `depth` bytes. depth is a
// multiple of 64; a and c have rows up to a multiple of kInt8RowMultiple.
#pragma once

#include "isa/simd.h"

#if defined(__AMX_INT8__)
#include "isa/amx.h"
#endif

namespace triolet::TRIOLET_ISA {

inline constexpr int kPanelWidth = 64;

#if defined(__AMX_INT8__)

inline constexpr int kInt8RowMultiple = kTileRows;
inline constexpr int kInt8RowBlock = 8 * kTileRows;
using Int8Scope = AmxScope;

struct Int8Dot {
    template <int kC, int kA, int kB>
    static TRIOLET_INLINE void run() {
        tile_dot_u8s8<kC, kA, kB>();
    }
};

inline void int8_multiply(const uint8_t* a, int64_t a_stride, int64_t rows, const int8_t* b, int64_t depth,
                          int32_t* c, bool from_memory) {
    const TileProduct<Int8Dot, PanelTiles> product{
        .a = reinterpret_cast<const char*>(a),
        .a_stride = a_stride,
        .b = {reinterpret_cast<const char*>(b), kPanelWidth * 4},
        .c = reinterpret_cast<char*>(c),
        .c_stride = kPanelWidth * static_cast<int64_t>(sizeof(int32_t)),
        .accumulate = false,
        .prefetch = from_memory,
    };
    product.run(rows, kPanelWidth / kLanes, depth / kTileBytes);
}

#else

#if defined(__AVX512F__)
inline constexpr int kInt8Rows = 6, kInt8Groups = 4;
#else
inline constexpr int kInt8Rows = 2, kInt8Groups = 1;
#endif

inline constexpr int kInt8RowMultiple = 1;
inline constexpr int kInt8RowBlock = kInt8Rows * 4;
struct Int8Scope {
    Int8Scope() {}
};

template <int R>
inline void int8_block(const uint8_t* a, int64_t a_stride, const int8_t* b, int64_t depth, int32_t* c,
                       bool from_memory) {
    for (int j = 0; j < kPanelWidth / kLanes; j += kInt8Groups) {
        I16 sum[R][kInt8Groups];
#pragma GCC unroll 6
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int g = 0; g < kInt8Groups; g++) sum[r][g] = splat_int(0);
        for (int64_t k = 0; k < depth; k += 4) {
            const int8_t* row = b + k * kPanelWidth + j * 64;
            Bytes64 weights[kInt8Groups];
#pragma GCC unroll 4
            for (int g = 0; g < kInt8Groups; g++) {
                weights[g] = load_bytes(row + g * 64);
                if (from_memory) __builtin_prefetch(row + g * 64 + 8192);
            }
#pragma GCC unroll 6
            for (int r = 0; r < R; r++)
#pragma GCC unroll 4
                for (int g = 0; g < kInt8Groups; g++) sum[r][g] = dot4(sum[r][g], a + r * a_stride + k, weights[g]);
        }
#pragma GCC unroll 6
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int g = 0; g < kInt8Groups; g++) store_int(c + r * kPanelWidth + (j + g) * kLanes, sum[r][g]);
    }
}

inline void int8_multiply(const uint8_t* a, int64_t a_stride, int64_t rows, const int8_t* b, int64_t depth,
                          int32_t* c, bool from_memory) {
    int64_t r = 0;
    for (; r + kInt8Rows <= rows; r += kInt8Rows) {
        int8_block<kInt8Rows>(a + r * a_stride, a_stride, b, depth, c + r * kPanelWidth, from_memory);
        from_memory = false;
    }
    a += r * a_stride;
    c += r * kPanelWidth;
    switch (rows - r) {
        case 1: return int8_block<1>(a, a_stride, b, depth, c, from_memory);
        case 2: return int8_block<2>(a, a_stride, b, depth, c, from_memory);
        case 3: return int8_block<3>(a, a_stride, b, depth, c, from_memory);
        case 4: return int8_block<4>(a, a_stride, b, depth, c, from_memory);
        case 5: return int8_block<5>(a, a_stride, b, depth, c, from_memory);
        default: return;
    }
}

#endif

}  // namespace triolet::TRIOLET_ISA
