// Linear with int8 weights (one scale per output) and int8 activations (one scale per row):
//
//   y[t][n] = (sum_k (q[t][k] + 128) w[n][k] - 128 sum_k w[n][k]) * x_scale[t] * w_scale[n]
//
// The sum is exact in int32 (K up to 66,000), so results do not depend on the batch.
#include "common/scratch.h"
#include "isa/int8_panel.h"
#include "ops/linear.h"
#include "ops/quantize_rows.h"
#include "ops/table.h"

namespace triolet::TRIOLET_ISA {

void linear_w8a8(ThreadPool& pool, const LinearArgs& args) {
    constexpr int64_t kRowsPerTile = 16;
    const int64_t depth = round_up(args.k, 64), stride = depth + 64;  // off the 4 KiB grid
    auto* quantized = scratch<int8_t>(ScratchSlot::kActivations, round_up(args.rows, kInt8RowMultiple) * stride);
    auto* row_scales = scratch<float>(ScratchSlot::kScales, args.rows);
    for_row_runs(pool, args.rows, kRowsPerTile, [&](int64_t first, int64_t end) {
        with_dtype(args.dtype, [&]<class T>(T) {
            for (int64_t row = first; row < end; row++)
                row_scales[row] = quantize_row(static_cast<const T*>(args.x) + row * args.k, args.k,
                                               quantized + row * stride, depth);
        });
        add_128(quantized + first * stride, (end - first) * stride);
    });

    const auto* activations = reinterpret_cast<const uint8_t*>(quantized);
    const auto* weight = static_cast<const int8_t*>(args.weight);
    const auto* scales = static_cast<const float*>(args.weight_scales);
    const LinearGrid grid(args.rows, args.n, stride, kPanelColumns * depth, kInt8RowBlock, pool.num_threads());
    pool.parallel_for(grid.tiles(), [&](int64_t tile) {
        const Int8Scope scope;
        alignas(64) int32_t sums[round_up(kInt8RowBlock, kInt8RowMultiple) * kPanelColumns];
        grid.for_each_panel(tile, [&](int64_t first, int64_t end, int64_t panel) {
            const int64_t column = panel * kPanelColumns;
            for (int64_t row = first; row < end; row += kInt8RowBlock) {
                const int64_t count = min64(kInt8RowBlock, end - row);
                int8_multiply(activations + row * stride, stride, count, weight + column * depth, depth, sums,
                              row == first);
                for (int64_t r = 0; r < count; r++)
                    for (int64_t c = 0; c < kPanelColumns; c += kLanes) {
                        const I16 sum = load_int(sums + r * kPanelColumns + c) - load_int(args.weight_sums + column + c);
                        const F16 scale = splat(row_scales[row + r]) * load(scales + column + c);
                        store_linear(args, row + r, column + c, to_floats(sum) * scale);
                    }
            }
        });
    });
}

}  // namespace triolet::TRIOLET_ISA
