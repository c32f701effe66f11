// y = x W^T + bias with float32 or bf16 weights; sums in float32, k from first to last.
#include "ops/linear.h"

#include "common/pack.h"
#include "common/scratch.h"
#include "isa/panel.h"
#include "ops/table.h"

namespace triolet::TRIOLET_ISA {
namespace {

// Rows [first, end) of x as activations of the panel product: converted, and padded with zeros.
template <class T, class Activation>
void prepare_rows(const T* x, int64_t k, int64_t rows, int64_t first, int64_t end, Activation* out, int64_t stride) {
    for (int64_t row = first; row < end; row++) {
        Activation* to = out + row * stride;
        int64_t column = 0;
        if (row < rows)
            for (; column < k; column += kLanes) {
                const int64_t count = min64(kLanes, k - column);
                store_some(to + column, load_some(x + row * k + column, count), count);
            }
        for (column = row < rows ? k : 0; column < stride; column++) to[column] = Activation{};
    }
}

template <class T>
void linear_of(ThreadPool& pool, const LinearArgs& args) {
    using P = Panel<T>;
    using Activation = typename P::Activation;
    constexpr int64_t kRowsPerTile = 32;
    const int64_t depth = std::is_same_v<T, bf16> ? round_up(args.k, 32) : args.k;  // as packed
    // A stride that is a multiple of 4 KiB would put all rows of a tile into one set of the cache.
    const int64_t stride = round_up(args.k, 64) + 32;
    const int64_t rows = round_up(args.rows, P::kRowMultiple);
    auto* activations = scratch<Activation>(ScratchSlot::kActivations, rows * stride);
    for_row_runs(pool, rows, kRowsPerTile, [&](int64_t first, int64_t end) {
        prepare_rows(static_cast<const T*>(args.x), args.k, args.rows, first, end, activations, stride);
    });

    const auto* weight = static_cast<const T*>(args.weight);
    const int64_t panel_values = kPanelColumns * depth;
    const LinearGrid grid(args.rows, args.n, stride * static_cast<int64_t>(sizeof(Activation)),
                          panel_values * static_cast<int64_t>(sizeof(T)), P::kRowBlock, pool.num_threads());
    pool.parallel_for(grid.tiles(), [&](int64_t tile) {
        const typename P::Scope scope;
        alignas(64) float sums[round_up(P::kRowBlock, P::kRowMultiple) * kPanelColumns];
        grid.for_each_panel(tile, [&](int64_t first, int64_t end, int64_t panel) {
            for (int64_t row = first; row < end; row += P::kRowBlock) {
                const int64_t count = min64(P::kRowBlock, end - row);
                P::multiply(activations + row * stride, stride, count, weight + panel * panel_values,
                            kPanelColumns * P::kPerWord, depth, sums, kPanelColumns, kPanelColumns / kLanes, false,
                            row == first ? Source::kMemory : Source::kCache);
                for (int64_t r = 0; r < count; r++)
                    for (int64_t c = 0; c < kPanelColumns; c += kLanes)
                        store_linear(args, row + r, panel * kPanelColumns + c, load(sums + r * kPanelColumns + c));
            }
        });
    });
}

}  // namespace

void linear(ThreadPool& pool, const LinearArgs& args) {
    if (args.dtype == DType::kFloat32)
        linear_of<float>(pool, args);
    else
        linear_of<bf16>(pool, args);
}

}  // namespace triolet::TRIOLET_ISA
