// Causal attention over the paged cache, for decoding and for prefill alike.
//
// A row goes through its keys in the same order and in the same steps whatever surrounds it:
// tiles of 64 tokens and spans of 512 lie at fixed positions of the sequence; each span is summed
// from zero and then merged with the spans before it. So the result has the same bits however a
// prefill was cut into chunks, with whom it shares a batch, and whether one thread takes all spans
// of a row or many threads take one each.
#include "ops/attention_tile.h"
#include "ops/linear.h"
#include "ops/table.h"

namespace triolet::TRIOLET_ISA {
namespace {

constexpr int64_t kSpanTokens = 512;

// Consecutive query tokens of one sequence under one KV head.
struct WorkItem {
    int32_t sequence;
    int32_t kv_head;
    int64_t first_row;  // of the batch
    int32_t queries;
    int32_t split;          // index of the first of its partial results, or -1: one thread does all
    int64_t begin, end;     // tokens that any of its rows sees
    int64_t first_span() const { return begin / kSpanTokens; }
    int64_t spans() const { return ceil_div(end, kSpanTokens) - first_span(); }
};

template <class T>
class Attention {
  public:
    using P = Panel<T>;
    using Activation = typename P::Activation;

    explicit Attention(const AttentionArgs& args)
        : args_(args),
          group_(args.num_heads / args.num_kv_heads),
          depth_(round_up(args.head_dim, 32)),
          queries_per_item_(max64(1, kMaxRows / group_)) {}

    void run(ThreadPool& pool) {
        list_items(pool.num_threads());
        if (splits_ == 0) {
            // The last chunk of a sequence sees most keys: start with the long ones.
            pool.parallel_for(items_count_, [&](int64_t tile) { whole_item(items_[items_count_ - 1 - tile]); });
            return;
        }
        partials_ = scratch<float>(ScratchSlot::kPartials, splits_ * partial_floats());
        pool.parallel_for(units_count_, [&](int64_t tile) { unit(units_[tile]); });
        for (int64_t i = 0; i < items_count_; i++)
            if (items_[i].split >= 0) merge_item(items_[i]);
    }

  private:
    struct Unit {
        int32_t item;
        int32_t span;  // of a split item, counted from its first; or -1: all of it
    };

    int64_t partial_floats() const { return padded_rows(kSplitRows) * (depth_ + 2); }
    static int64_t padded_rows(int64_t rows) { return round_up(rows, P::kRowMultiple); }

    Partial partial_at(float* memory, int64_t rows) const {
        const int64_t padded = padded_rows(rows);
        return {memory, memory + padded * depth_, memory + padded * (depth_ + 1)};
    }

    WorkItem item_of(int64_t sequence, int kv_head, int64_t first_row, int64_t queries) const {
        int64_t first = args_.positions[first_row], last = first;
        for (int64_t i = 1; i < queries; i++) {
            first = min64(first, args_.positions[first_row + i]);
            last = max64(last, args_.positions[first_row + i]);
        }
        return {static_cast<int32_t>(sequence), kv_head, first_row, static_cast<int32_t>(queries), -1,
                window_begin(first), last + 1};
    }

    int64_t window_begin(int64_t position) const {
        return args_.window > 0 ? max64(0, position - args_.window + 1) : 0;
    }

    void list_items(int threads) {
        int64_t count = 0;
        for (int64_t s = 0; s < args_.sequences; s++)
            count += ceil_div(args_.query_starts[s + 1] - args_.query_starts[s], queries_per_item_);
        items_count_ = count * args_.num_kv_heads;
        items_ = scratch<WorkItem>(ScratchSlot::kWorkItems, items_count_);
        int64_t next = 0;
        for (int64_t s = 0; s < args_.sequences; s++)
            for (int64_t row = args_.query_starts[s]; row < args_.query_starts[s + 1]; row += queries_per_item_)
                for (int head = 0; head < args_.num_kv_heads; head++)
                    items_[next++] = item_of(s, head, row, min64(queries_per_item_, args_.query_starts[s + 1] - row));
        // With work for everybody, spans stay together: no partial results to write and read.
        if (threads > 1 && items_count_ < 4 * threads) split_items();
    }

    void split_items() {
        units_count_ = 0;
        int64_t total = 0;
        for (int64_t i = 0; i < items_count_; i++) total += items_[i].spans();
        units_ = scratch<Unit>(ScratchSlot::kWorkUnits, total);
        for (int64_t i = 0; i < items_count_; i++) {
            WorkItem& item = items_[i];
            const bool split = item.spans() > 1 && item.queries * group_ <= kSplitRows;
            if (!split) {
                units_[units_count_++] = {static_cast<int32_t>(i), -1};
                continue;
            }
            item.split = static_cast<int32_t>(splits_);
            splits_ += item.spans();
            for (int64_t span = 0; span < item.spans(); span++)
                units_[units_count_++] = {static_cast<int32_t>(i), static_cast<int32_t>(span)};
        }
    }

    void unit(const Unit& unit) {
        const WorkItem& item = items_[unit.item];
        if (unit.span < 0) return whole_item(item);
        const int64_t rows = item.queries * group_;
        const Activation* queries = stage_queries(item);
        KeyValueTile<T> tile(args_, item.sequence, item.kv_head, depth_);
        span(item, item.first_span() + unit.span, queries, tile,
             partial_at(partials_ + (item.split + unit.span) * partial_floats(), rows));
    }

    void merge_item(const WorkItem& item) {
        const int64_t rows = item.queries * group_;
        const Partial first = partial_at(partials_ + item.split * partial_floats(), rows);
        for (int64_t s = 1; s < item.spans(); s++) {
            const Partial later = partial_at(partials_ + (item.split + s) * partial_floats(), rows);
            for (int64_t r = 0; r < rows; r++) merge_row(first, later, r, depth_);
        }
        finish(item, first);
    }

    void whole_item(const WorkItem& item) {
        const int64_t rows = item.queries * group_;
        float* memory = scratch<float>(ScratchSlot::kResult, 2 * padded_rows(rows) * (depth_ + 2));
        const Partial sums = partial_at(memory, rows);
        const Partial later = partial_at(memory + padded_rows(rows) * (depth_ + 2), rows);
        const Activation* queries = stage_queries(item);
        KeyValueTile<T> tile(args_, item.sequence, item.kv_head, depth_);
        span(item, item.first_span(), queries, tile, sums);
        for (int64_t s = 1; s < item.spans(); s++) {
            span(item, item.first_span() + s, queries, tile, later);
            for (int64_t r = 0; r < rows; r++) merge_row(sums, later, r, depth_);
        }
        finish(item, sums);
    }

    // Rows of the item as [rows][depth], padded with zeros.
    const Activation* stage_queries(const WorkItem& item) {
        const int64_t rows = item.queries * group_, n = args_.head_dim;
        auto* queries = scratch<Activation>(ScratchSlot::kQueries, padded_rows(rows) * (depth_ + kTileTokens));
        for (int64_t r = 0; r < padded_rows(rows); r++) {
            Activation* to = queries + r * depth_;
            for (int64_t d = 0; d < depth_; d += kLanes) store(to + d, zero());
            if (r >= rows) continue;
            const T* from = static_cast<const T*>(args_.q) + row_offset(item, r);
            for (int64_t d = 0; d < n; d += kLanes) store_some(to + d, load_some(from + d, n - d), n - d);
        }
        return queries;
    }

    int64_t row_offset(const WorkItem& item, int64_t r) const {
        const int64_t head = item.kv_head * group_ + r % group_;
        return ((item.first_row + r / group_) * args_.num_heads + head) * args_.head_dim;
    }

    // Sums of the item's rows over one span of keys.
    void span(const WorkItem& item, int64_t index, const Activation* queries, KeyValueTile<T>& keys_values,
              const Partial& sums) {
        const typename P::Scope scope;
        const int64_t rows = item.queries * group_;
        sums.clear(padded_rows(rows), depth_);
        alignas(64) float scores[kMaxRows * kTileTokens];
        auto* probabilities = const_cast<Activation*>(queries) + padded_rows(rows) * depth_;
        const int64_t begin = max64(item.begin, index * kSpanTokens);
        const int64_t end = min64(item.end, (index + 1) * kSpanTokens);
        for (int64_t tile = begin / kTileTokens * kTileTokens; tile < end; tile += kTileTokens) {
            keys_values.select(tile, item.begin, item.end);
            keys_values.fetch_next(0);
            keys_values.score(queries, rows, scores);
            keys_values.fetch_next(1);
            for (int64_t r = 0; r < rows; r++) {
                const int64_t position = args_.positions[item.first_row + r / group_];
                const int64_t from = max64(0, window_begin(position) - tile);
                const int64_t to = min64(kTileTokens, position + 1 - tile);
                softmax_row(args_, scores + r * kTileTokens, from, to, sums, r, depth_,
                            probabilities + r * kTileTokens);
            }
            keys_values.fetch_next(2);
            keys_values.add_values(probabilities, rows, sums.out);
            keys_values.fetch_next(3);
        }
    }

    void finish(const WorkItem& item, const Partial& sums) {
        for (int64_t r = 0; r < item.queries * group_; r++) {
            const float* sink = args_.sinks != nullptr ? args_.sinks + item.kv_head * group_ + r % group_ : nullptr;
            finish_row(sums, r, depth_, sink, static_cast<T*>(args_.out) + row_offset(item, r), args_.head_dim);
        }
    }

    // Items of at most so many rows (decoding) may be split over their spans.
    static constexpr int64_t kSplitRows = 16;

    const AttentionArgs& args_;
    int64_t group_;
    int64_t depth_;  // head dimension, padded for the panels
    int64_t queries_per_item_;
    WorkItem* items_ = nullptr;
    int64_t items_count_ = 0;
    Unit* units_ = nullptr;
    int64_t units_count_ = 0;
    float* partials_ = nullptr;
    int64_t splits_ = 0;
};

}  // namespace

void paged_attention(ThreadPool& pool, const AttentionArgs& args) {
    check_indices("position", args.positions, args.query_starts[args.sequences],
                  args.block_table_stride * args.block_size);
    if (args.dtype == DType::kFloat32)
        Attention<float>(args).run(pool);
    else
        Attention<bf16>(args).run(pool);
}

}  // namespace triolet::TRIOLET_ISA
