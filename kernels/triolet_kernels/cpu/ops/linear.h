// What the linears of all weight formats share: how work is cut, and what happens to a result.
#pragma once

#include "common/kernel_table.h"
#include "common/thread_pool.h"
#include "isa/simd.h"

namespace triolet::TRIOLET_ISA {

// Work of a linear: blocks of rows x runs of panels. One tile of the pool is one run for one block.
// The cut never changes a result, only who computes it.
struct LinearGrid {
    int64_t rows, panels;
    int64_t block_rows;  // rows whose activations stay in the L2 cache while panels pass by
    int64_t run_panels;

    LinearGrid(int64_t rows, int64_t n, int64_t activation_row_bytes, int64_t panel_bytes, int row_multiple,
               int threads)
        : rows(rows), panels(ceil_div(n, kPanelColumns)) {
        constexpr int64_t kActivationBytes = 768 << 10;  // of 1 to 2 MiB of L2
        const int64_t fitting = kActivationBytes / activation_row_bytes / row_multiple * row_multiple;
        block_rows = max64(fitting, row_multiple);
        // A tile should last about 20 us (a hand-out costs well under 1 us), which is 256 KiB from
        // memory; with many rows per weight it lasts longer. Four tiles per thread level the load.
        const int64_t rows_at_once = min64(rows, block_rows);
        const int64_t by_time = (256 << 10) / (panel_bytes * max64(1, rows_at_once / 64));
        const int64_t by_balance = panels / (4 * threads);
        run_panels = max64(1, min64(by_time, by_balance));
    }

    int64_t runs() const { return ceil_div(panels, run_panels); }
    int64_t tiles() const { return ceil_div(rows, block_rows) * runs(); }

    // body(first row, end row, panel) for every panel of the tile.
    template <class Body>
    void for_each_panel(int64_t tile, Body&& body) const {
        const int64_t first_row = tile / runs() * block_rows;
        const int64_t first_panel = tile % runs() * run_panels;
        const int64_t end_panel = min64(first_panel + run_panels, panels);
        for (int64_t panel = first_panel; panel < end_panel; panel++)
            body(first_row, min64(first_row + block_rows, rows), panel);
    }
};

// y[row][column .. column + 16) = values + bias, cut off at n.
TRIOLET_INLINE void store_linear(const LinearArgs& args, int64_t row, int64_t column, F16 values) {
    const int64_t left = args.n - column;
    if (left <= 0) return;
    if (args.bias != nullptr) values = values + load(args.bias + column);
    const int64_t at = row * args.n + column;
    if (args.float_output || args.dtype == DType::kFloat32)
        store_some(static_cast<float*>(args.y) + at, values, left);
    else
        store_some(static_cast<bf16*>(args.y) + at, values, left);
}

// Calls body(first, end) for runs of rows: in the caller if they are few, else on the pool.
template <class Body>
inline void for_row_runs(ThreadPool& pool, int64_t rows, int64_t rows_per_tile, Body&& body) {
    if (rows <= rows_per_tile) return body(int64_t{0}, rows);
    pool.parallel_for(ceil_div(rows, rows_per_tile), [&](int64_t tile) {
        body(tile * rows_per_tile, min64(rows, (tile + 1) * rows_per_tile));
    });
}

}  // namespace triolet::TRIOLET_ISA
