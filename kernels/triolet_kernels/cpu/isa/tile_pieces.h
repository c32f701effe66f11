// Where the right-hand side of a tile product lies in memory.
#pragma once

#include "isa/simd.h"

namespace triolet::TRIOLET_ISA {

inline constexpr int kTileRows = 16;
inline constexpr int kTileBytes = 64;  // of one row

// Where a tile of b is: words of 16 columns (a group) for one step of 64 bytes of a. A word is four
// bytes here, two bf16 or four bytes, so 16 words of a row are the 64 bytes of a tile row.
// A whole packed panel:
struct PanelTiles {
    const char* base;
    int64_t stride;  // bytes from one row of words to the next

    TRIOLET_INLINE const char* at(int64_t step, int64_t group) const {
        return base + step * kTileRows * stride + group * kTileBytes;
    }
};
// One that lies in pieces of 16 columns (at most 4) ...
struct TilesByGroup {
    const char* base[4];
    int64_t stride;

    TRIOLET_INLINE const char* at(int64_t step, int64_t group) const {
        return base[group] + step * kTileRows * stride;
    }
};
// ... or in pieces of one step (at most 2).
struct TilesByStep {
    const char* base[2];
    int64_t stride;

    TRIOLET_INLINE const char* at(int64_t step, int64_t group) const { return base[step] + group * kTileBytes; }
};

}  // namespace triolet::TRIOLET_ISA
