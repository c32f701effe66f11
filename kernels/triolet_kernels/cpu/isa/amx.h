// AMX tile registers: eight of 16 rows x 64 bytes, multiplied by one instruction.
//
// Inline assembly rather than the intrinsics: those of GCC 12 do not say that a tile load reads
// memory, so the compiler may move a store past the load that needs it.
#pragma once

#include "isa/tile_pieces.h"

namespace triolet::TRIOLET_ISA {

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

// c (+)= a b on tiles. Rows of a and c exist up to a multiple of 16; strides are in bytes. Dot says
// which instruction: Dot::run<c, a, b>().
template <class Dot, class Tiles>
struct TileProduct {
    const char* a;
    int64_t a_stride;
    Tiles b;
    char* c;
    int64_t c_stride;
    bool accumulate;
    bool prefetch;  // b comes from memory: fetch ahead of its first use

    TRIOLET_INLINE const char* a_tile(int64_t row, int64_t step) const { return a + row * a_stride + step * kTileBytes; }
    TRIOLET_INLINE char* c_tile(int64_t row, int64_t group) const { return c + row * c_stride + group * kTileBytes; }

    template <int kTile>
    TRIOLET_INLINE void begin(int64_t row, int64_t group, bool add) const {
        if (add)
            tile_load<kTile>(c_tile(row, group), c_stride);
        else
            tile_zero<kTile>();
    }

    template <int kGroups>
    TRIOLET_INLINE void fetch_ahead(int64_t step, int64_t group) const {
        constexpr int64_t kAhead = 8192;
        const char* line = b.at(step, group) + kAhead;
        asm("" : "+r"(line));  // one pointer; GCC would keep one per line, in memory, in every step
#pragma GCC unroll 1
        for (int row = 0; row < kTileRows; row++, line += b.stride)
            for (int g = 0; g < kGroups; g++) __builtin_prefetch(line + g * kTileBytes);
    }

    // 32 rows x 32 columns: every tile that is loaded is used twice.
    TRIOLET_INLINE void block_2x2(int64_t row, int64_t group, int64_t step, int64_t end, bool add) const {
        const int64_t below = row + kTileRows;
        begin<0>(row, group, add);
        begin<1>(row, group + 1, add);
        begin<2>(below, group, add);
        begin<3>(below, group + 1, add);
        for (; step < end; step++) {
            if (prefetch && row == 0) fetch_ahead<2>(step, group);
            tile_load<4>(a_tile(row, step), a_stride);
            tile_load<6>(b.at(step, group), b.stride);
            tile_load<7>(b.at(step, group + 1), b.stride);
            Dot::template run<0, 4, 6>();
            Dot::template run<1, 4, 7>();
            tile_load<5>(a_tile(below, step), a_stride);
            Dot::template run<2, 5, 6>();
            Dot::template run<3, 5, 7>();
        }
        tile_store<0>(c_tile(row, group), c_stride);
        tile_store<1>(c_tile(row, group + 1), c_stride);
        tile_store<2>(c_tile(below, group), c_stride);
        tile_store<3>(c_tile(below, group + 1), c_stride);
    }

    // 16 rows x 16 * kGroups columns (1 to 4): every row of b is read once, whole.
    template <int kGroups>
    TRIOLET_INLINE void block_1x4(int64_t row, int64_t group, int64_t step, int64_t end, bool add) const {
        begin<0>(row, group, add);
        if constexpr (kGroups > 1) begin<1>(row, group + 1, add);
        if constexpr (kGroups > 2) begin<2>(row, group + 2, add);
        if constexpr (kGroups > 3) begin<3>(row, group + 3, add);
        for (; step < end; step++) {
            if (prefetch && row == 0) fetch_ahead<kGroups>(step, group);
            tile_load<4>(a_tile(row, step), a_stride);
            tile_load<5>(b.at(step, group), b.stride);
            Dot::template run<0, 4, 5>();
            if constexpr (kGroups > 1) {
                tile_load<6>(b.at(step, group + 1), b.stride);
                Dot::template run<1, 4, 6>();
            }
            if constexpr (kGroups > 2) {
                tile_load<7>(b.at(step, group + 2), b.stride);
                Dot::template run<2, 4, 7>();
            }
            if constexpr (kGroups > 3) {
                tile_load<5>(b.at(step, group + 3), b.stride);
                Dot::template run<3, 4, 5>();
            }
        }
        tile_store<0>(c_tile(row, group), c_stride);
        if constexpr (kGroups > 1) tile_store<1>(c_tile(row, group + 1), c_stride);
        if constexpr (kGroups > 2) tile_store<2>(c_tile(row, group + 2), c_stride);
        if constexpr (kGroups > 3) tile_store<3>(c_tile(row, group + 3), c_stride);
    }

    // One or two tiles of rows: b is read once, so nothing is gained by cutting it up.
    TRIOLET_INLINE void few_rows(int64_t row, int64_t rows, int64_t groups, int64_t steps) const {
        int64_t group = 0;
        if (rows > kTileRows) {
            for (; group + 2 <= groups; group += 2) block_2x2(row, group, 0, steps, accumulate);
            if (group < groups) {
                block_1x4<1>(row, group, 0, steps, accumulate);
                block_1x4<1>(row + kTileRows, group, 0, steps, accumulate);
            }
            return;
        }
        for (; group + 4 <= groups; group += 4) block_1x4<4>(row, group, 0, steps, accumulate);
        switch (groups - group) {
            case 1: return block_1x4<1>(row, group, 0, steps, accumulate);
            case 2: return block_1x4<2>(row, group, 0, steps, accumulate);
            case 3: return block_1x4<3>(row, group, 0, steps, accumulate);
            default: return;
        }
    }

    // `steps` of 64 bytes of a. With many rows, b is cut into pieces of 32 columns x 512 k that stay
    // in the L1 cache while all rows pass by; sums wait in c meanwhile. A float32 that is stored
    // and loaded keeps its bits, so the cut does not show in the result.
    void run(int64_t rows, int64_t groups, int64_t steps) const {
        constexpr int64_t kPieceSteps = 16;  // 32 KiB
        if (rows <= 2 * kTileRows || groups % 2 != 0) {
            for (int64_t row = 0; row < rows; row += 2 * kTileRows) few_rows(row, rows - row, groups, steps);
            return;
        }
        for (int64_t first = 0; first < steps; first += kPieceSteps) {
            const int64_t end = min64(first + kPieceSteps, steps);
            const bool add = accumulate || first > 0;
            for (int64_t group = 0; group < groups; group += 2) {
                int64_t row = 0;
                for (; row + kTileRows < rows; row += 2 * kTileRows) block_2x2(row, group, first, end, add);
                if (row < rows) block_1x4<2>(row, group, first, end, add);
            }
        }
    }
};

}  // namespace triolet::TRIOLET_ISA
