// Linear with 4-bit weights in groups of 32 k (one bf16 scale per group and output) and int8
// activations (one scale per row):
//
//   y[t][n] = x_scale[t] * sum over groups g of w_scale[g][n] * sum_{k in g} q[t][k] (w[n][k] - 8)
//
// Inner sums are exact integers, the outer one is float32 from the first group to the last.
#include "common/scratch.h"
#include "ops/linear.h"
#include "ops/quantize_rows.h"
#include "ops/table.h"

namespace triolet::TRIOLET_ISA {
namespace {

constexpr int64_t kGroup = 32;
constexpr int64_t kGroupBytes = kGroup / 2 * kPanelColumns;
constexpr int64_t kPrefetchBytes = 6144;

// A row of activations, and what the 8 that is added to every weight contributes per group.
struct QuantizedRows {
    const int8_t* values;      // [rows][stride]
    const int32_t* eight_sums;  // [rows][groups]: 8 * sum of the group
    int64_t stride, groups;
};

// R rows times 16 * J columns. Weights are the unsigned operand (0..15) and activations the signed
// one, so that the correction is per row and group: it is where the integer sums start.
template <int R, int J>
inline void block(const QuantizedRows& x, int64_t row, const uint8_t* weight, const bf16* scales, F16 (&out)[R][J]) {
    for (int r = 0; r < R; r++)
        for (int j = 0; j < J; j++) out[r][j] = zero();
    for (int64_t g = 0; g < x.groups; g++) {
        I16 sum[R][J];
#pragma GCC unroll 4
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int j = 0; j < J; j++) sum[r][j] = splat_int(-x.eight_sums[(row + r) * x.groups + g]);
#pragma GCC unroll 4
        for (int pair = 0; pair < 4; pair++) {
            const int8_t* q = x.values + row * x.stride + g * kGroup + pair * 8;
#pragma GCC unroll 4
            for (int j = 0; j < J; j++) {
                const uint8_t* bytes = weight + g * kGroupBytes + pair * 4 * kPanelColumns + j * 64;
                __builtin_prefetch(bytes + kPrefetchBytes);
                const Bytes64 both = load_bytes(bytes), low = low_nibbles(both), high = high_nibbles(both);
#pragma GCC unroll 4
                for (int r = 0; r < R; r++) {
                    sum[r][j] = dot4_unsigned_weights(sum[r][j], q + r * x.stride, low);
                    sum[r][j] = dot4_unsigned_weights(sum[r][j], q + r * x.stride + 4, high);
                }
            }
        }
#pragma GCC unroll 4
        for (int j = 0; j < J; j++) {
            const F16 scale = load(scales + g * kPanelColumns + j * kLanes);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) out[r][j] = fma(to_floats(sum[r][j]), scale, out[r][j]);
        }
    }
}

template <int R, int J>
void rows_of(const LinearArgs& args, const QuantizedRows& x, const float* row_scales, int64_t row, int64_t panel) {
    const int64_t first = panel * kPanelColumns * x.groups;
    for (int64_t c = 0; c < kPanelColumns; c += J * kLanes) {
        F16 out[R][J];
        block<R, J>(x, row, static_cast<const uint8_t*>(args.weight) + first * kGroup / 2 + c * 4,
                    static_cast<const bf16*>(args.weight_scales) + first + c, out);
        for (int r = 0; r < R; r++)
            for (int j = 0; j < J; j++)
                store_linear(args, row + r, panel * kPanelColumns + c + j * kLanes, out[r][j] * splat(row_scales[row + r]));
    }
}

// Integer sums and float sums of a block must fit in the registers.
#if defined(__AVX512F__)
constexpr int kRows = 4, kGroups = 2, kSingleGroups = 4;
#else
constexpr int kRows = 2, kGroups = 1, kSingleGroups = 1;
#endif

}  // namespace

void linear_w4a8(ThreadPool& pool, const LinearArgs& args) {
    constexpr int64_t kRowsPerTile = 16;
    const int64_t depth = round_up(args.k, kGroup), groups = depth / kGroup;
    auto* values = scratch<int8_t>(ScratchSlot::kActivations, args.rows * depth);
    auto* row_scales = scratch<float>(ScratchSlot::kScales, args.rows * (groups + 1));
    auto* eight_sums = reinterpret_cast<int32_t*>(row_scales + args.rows);
    for_row_runs(pool, args.rows, kRowsPerTile, [&](int64_t first, int64_t end) {
        with_dtype(args.dtype, [&]<class T>(T) {
            for (int64_t row = first; row < end; row++) {
                int8_t* q = values + row * depth;
                row_scales[row] = quantize_row(static_cast<const T*>(args.x) + row * args.k, args.k, q, depth);
                for (int64_t g = 0; g < groups; g++) {
                    int32_t sum = 0;
                    for (int64_t i = 0; i < kGroup; i++) sum += q[g * kGroup + i];
                    eight_sums[row * groups + g] = 8 * sum;
                }
            }
        });
    });

    const QuantizedRows x{values, eight_sums, depth, groups};
    const LinearGrid grid(args.rows, args.n, depth, kPanelColumns * depth / 2, kRows, pool.num_threads());
    pool.parallel_for(grid.tiles(), [&](int64_t tile) {
        grid.for_each_panel(tile, [&](int64_t first, int64_t end, int64_t panel) {
            int64_t row = first;
            for (; row + kRows <= end; row += kRows) rows_of<kRows, kGroups>(args, x, row_scales, row, panel);
            for (; row < end; row++) rows_of<1, kSingleGroups>(args, x, row_scales, row, panel);
        });
    });
}

}  // namespace triolet::TRIOLET_ISA
