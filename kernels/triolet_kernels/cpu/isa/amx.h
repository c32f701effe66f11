// AMX tile registers: eight of 16 rows x 64 bytes, multiplied by one instruction.
//
// Inline assembly rather than the intrinsics: those of GCC 12 do not say that a tile load reads
// memory, so the compiler may move a store past the load that needs it.
#pragma once

#include "isa/simd.h"

namespace triolet::TRIOLET_ISA {

inline constexpr int kTileRows = 16;
inline constexpr int kTileBytes = 64;  // of one row

// Configures all eight tiles of this thread as 16 x 64 bytes, and releases them at the end. A tile
// with fewer rows would be no faster (16 cycles either way), so rows are padded instead.
class AmxScope {
  public:
    AmxScope() {
        struct alignas(64) Configuration {
            uint8_t palette = 1;
            uint8_t start_row = 0;
            uint8_t reserved[14] = {};
            uint16_t row_bytes[16] = {};
            uint8_t rows[16] = {};
        } configuration;
        for (int tile = 0; tile < 8; tile++) {
            configuration.row_bytes[tile] = kTileBytes;
            configuration.rows[tile] = kTileRows;
        }
        asm volatile("ldtilecfg %0" ::"m"(configuration) : "memory");
    }
    ~AmxScope() { asm volatile("tilerelease" ::: "memory"); }
    AmxScope(const AmxScope&) = delete;
    AmxScope& operator=(const AmxScope&) = delete;
};

template <int kTile>
TRIOLET_INLINE void tile_zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kTile>
TRIOLET_INLINE void tile_load(const void* from, int64_t stride_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride_bytes), "i"(kTile) : "memory");
}
template <int kTile>
TRIOLET_INLINE void tile_store(void* to, int64_t stride_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride_bytes), "i"(kTile) : "memory");
}
// c += a * b, bf16 pairs into float32.
template <int kC, int kA, int kB>
TRIOLET_INLINE void tile_dot_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
}
// c += a * b, four unsigned bytes of a times four signed ones of b into int32.
template <int kC, int kA, int kB>
TRIOLET_INLINE void tile_dot_u8s8() {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
}

// One product of tiles: a and c have rows of 16, b is a packed panel (see panel.h; here a word is
// four bytes, so 16 words are the 64 bytes of a tile row). Strides in bytes; `steps` of 64 bytes
// of a. Dot::run<c, a, b> is the instruction.
struct TileProduct {
    const char* a;
    int64_t a_stride;
    const char* b;
    int64_t b_stride;
    int64_t steps;
    char* c;
    int64_t c_stride;
    bool accumulate;
    bool prefetch;

    TRIOLET_INLINE const char* a_tile(int64_t step, int row_tile) const {
        return a + row_tile * kTileRows * a_stride + step * kTileBytes;
    }
    TRIOLET_INLINE const char* b_tile(int64_t step, int group) const {
        return b + step * kTileRows * b_stride + group * kTileBytes;
    }
    TRIOLET_INLINE char* c_tile(int row_tile, int group) const {
        return c + row_tile * kTileRows * c_stride + group * kTileBytes;
    }
    template <int kTile>
    TRIOLET_INLINE void begin(int row_tile, int group) const {
        if (accumulate)
            tile_load<kTile>(c_tile(row_tile, group), c_stride);
        else
            tile_zero<kTile>();
    }
    TRIOLET_INLINE void prefetch_step(int64_t step, int groups, int64_t distance) const {
        if (!prefetch) return;
        for (int row = 0; row < kTileRows; row++)
            for (int group = 0; group < groups; group++)
                __builtin_prefetch(b_tile(step, group) + row * b_stride + distance);
    }
};

// 32 rows x 32 columns: every tile that is loaded is used twice.
template <class Dot>
TRIOLET_INLINE void tile_block_2x2(const TileProduct& p) {
    p.begin<0>(0, 0);
    p.begin<1>(0, 1);
    p.begin<2>(1, 0);
    p.begin<3>(1, 1);
    for (int64_t step = 0; step < p.steps; step++) {
        p.prefetch_step(step, 2, 8192);
        tile_load<4>(p.a_tile(step, 0), p.a_stride);
        tile_load<6>(p.b_tile(step, 0), p.b_stride);
        tile_load<7>(p.b_tile(step, 1), p.b_stride);
        Dot::template run<0, 4, 6>();
        Dot::template run<1, 4, 7>();
        tile_load<5>(p.a_tile(step, 1), p.a_stride);
        Dot::template run<2, 5, 6>();
        Dot::template run<3, 5, 7>();
    }
    tile_store<0>(p.c_tile(0, 0), p.c_stride);
    tile_store<1>(p.c_tile(0, 1), p.c_stride);
    tile_store<2>(p.c_tile(1, 0), p.c_stride);
    tile_store<3>(p.c_tile(1, 1), p.c_stride);
}

// 16 rows x 16 * kGroups columns (1 to 4): every row of b is read once, whole.
template <class Dot, int kGroups>
TRIOLET_INLINE void tile_block_1x4(const TileProduct& p) {
    p.begin<0>(0, 0);
    if constexpr (kGroups > 1) p.begin<1>(0, 1);
    if constexpr (kGroups > 2) p.begin<2>(0, 2);
    if constexpr (kGroups > 3) p.begin<3>(0, 3);
    for (int64_t step = 0; step < p.steps; step++) {
        p.prefetch_step(step, kGroups, 8192);
        tile_load<4>(p.a_tile(step, 0), p.a_stride);
        tile_load<5>(p.b_tile(step, 0), p.b_stride);
        Dot::template run<0, 4, 5>();
        if constexpr (kGroups > 1) {
            tile_load<6>(p.b_tile(step, 1), p.b_stride);
            Dot::template run<1, 4, 6>();
        }
        if constexpr (kGroups > 2) {
            tile_load<7>(p.b_tile(step, 2), p.b_stride);
            Dot::template run<2, 4, 7>();
        }
        if constexpr (kGroups > 3) {
            tile_load<5>(p.b_tile(step, 3), p.b_stride);
            Dot::template run<3, 4, 5>();
        }
    }
    tile_store<0>(p.c_tile(0, 0), p.c_stride);
    if constexpr (kGroups > 1) tile_store<1>(p.c_tile(0, 1), p.c_stride);
    if constexpr (kGroups > 2) tile_store<2>(p.c_tile(0, 2), p.c_stride);
    if constexpr (kGroups > 3) tile_store<3>(p.c_tile(0, 3), p.c_stride);
}

// Any number of rows (c and a padded to a multiple of 16) and groups of 16 columns.
template <class Dot>
inline void tile_multiply(TileProduct p, int64_t rows, int groups) {
    for (; rows > kTileRows; rows -= 2 * kTileRows) {
        TileProduct q = p;
        int left = groups;
        for (; left >= 2; left -= 2) {
            tile_block_2x2<Dot>(q);
            q.b += 2 * kTileBytes;
            q.c += 2 * kTileBytes;
        }
        if (left == 1) {
            tile_block_1x4<Dot, 1>(q);
            q.a += kTileRows * q.a_stride;
            q.c += kTileRows * q.c_stride;
            tile_block_1x4<Dot, 1>(q);
        }
        p.a += 2 * kTileRows * p.a_stride;
        p.c += 2 * kTileRows * p.c_stride;
        p.prefetch = false;
    }
    if (rows <= 0) return;
    for (; groups >= 4; groups -= 4) {
        tile_block_1x4<Dot, 4>(p);
        p.b += 4 * kTileBytes;
        p.c += 4 * kTileBytes;
    }
    switch (groups) {
        case 1: return tile_block_1x4<Dot, 1>(p);
        case 2: return tile_block_1x4<Dot, 2>(p);
        case 3: return tile_block_1x4<Dot, 3>(p);
        default: return;
    }
}

}  // namespace triolet::TRIOLET_ISA
