// Panel<bf16> on AMX tiles. Included by panel.h only.
//
// All row counts use it, one row included: the tile instruction rounds differently from
// vdpbf16ps, and a row must not change when others join it. At one row the weights come from
// memory more slowly than the tiles take them, so nothing is lost.
#pragma once

#include "isa/amx.h"

namespace triolet::TRIOLET_ISA {

template <>
struct Panel<bf16> {
    using Weight = bf16;
    using Activation = bf16;
    static constexpr int kPerWord = 2;
    static constexpr int kDepthMultiple = 32;
    static constexpr int kRowMultiple = kTileRows;
    static constexpr int kRowBlock = 8 * kTileRows;
    static constexpr bool kReadsPieces = true;
    using Scope = AmxScope;

    struct Dot {
        template <int kC, int kA, int kB>
        static TRIOLET_INLINE void run() {
            tile_dot_bf16<kC, kA, kB>();
        }
    };

    static void multiply(const bf16* a, int64_t a_stride, int64_t rows, const bf16* b, int64_t b_stride,
                         int64_t depth, float* c, int64_t c_stride, int groups, bool accumulate, Source source) {
        const PanelTiles tiles{reinterpret_cast<const char*>(b), b_stride * kBf16};
        multiply(a, a_stride, rows, tiles, depth, c, c_stride, groups, accumulate, source);
    }

    template <class Tiles>
    static void multiply(const bf16* a, int64_t a_stride, int64_t rows, const Tiles& b, int64_t depth, float* c,
                         int64_t c_stride, int groups, bool accumulate, Source source) {
        const TileProduct<Dot, Tiles> product{
            .a = reinterpret_cast<const char*>(a),
            .a_stride = a_stride * kBf16,
            .b = b,
            .c = reinterpret_cast<char*>(c),
            .c_stride = c_stride * kFloat,
            .accumulate = accumulate,
            .prefetch = source == Source::kMemory,
        };
        product.run(rows, groups, depth / kDepthMultiple);
    }

  private:
    static constexpr int64_t kBf16 = sizeof(bf16), kFloat = sizeof(float);
};

}  // namespace triolet::TRIOLET_ISA
