// One tile of paged attention: 64 keys and values against up to kMaxRows query rows.
//
// A row is one head of one query token; the heads that share a KV head are neighbours, so that a
// key is loaded once for all of them. Softmax is the online one: per row a running maximum m, a
// total l = sum exp(score - m) and out = sum exp(score - m) v.
#pragma once

#include "common/checks.h"
#include "common/kernel_table.h"
#include "common/scratch.h"
#include "isa/panel.h"

namespace triolet::TRIOLET_ISA {

inline constexpr int64_t kTileTokens = 64;
inline constexpr int64_t kMaxRows = 128;

// Sums of some rows over some keys. `out` is [rows][depth].
struct Partial {
    float* out;
    float* maximum;
    float* total;

    void clear(int64_t rows, int64_t depth) const {
        for (int64_t i = 0; i < rows * depth; i += kLanes) store(out + i, zero());
        for (int64_t r = 0; r < rows; r++) {
            maximum[r] = -kInfinity;
            total[r] = 0.0f;
        }
    }
};

inline float exp_scalar(float x) {
    float lanes[kLanes];
    store(lanes, exp(splat(x)));
    return lanes[0];
}

// Adds the sums of later keys to those of earlier ones, row r of each. Adding to a row that has
// seen no key yet gives exactly `later`.
inline void merge_row(const Partial& earlier, const Partial& later, int64_t r, int64_t depth) {
    if (later.maximum[r] == -kInfinity) return;
    const float maximum = later.maximum[r] > earlier.maximum[r] ? later.maximum[r] : earlier.maximum[r];
    const float a = exp_scalar(earlier.maximum[r] - maximum), b = exp_scalar(later.maximum[r] - maximum);
    for (int64_t d = 0; d < depth; d += kLanes) {
        float* to = earlier.out + r * depth + d;
        store(to, fma(load(to), splat(a), load(later.out + r * depth + d) * splat(b)));
    }
    earlier.total[r] = earlier.total[r] * a + later.total[r] * b;
    earlier.maximum[r] = maximum;
}

// out row = sums / total, the sink being one more score without a value.
template <class T>
inline void finish_row(const Partial& sums, int64_t r, int64_t depth, const float* sink, T* out, int64_t head_dim) {
    float factor = sums.total[r] > 0.0f ? 1.0f / sums.total[r] : 0.0f;
    if (sink != nullptr) {
        const float maximum = *sink > sums.maximum[r] ? *sink : sums.maximum[r];
        const float scale = exp_scalar(sums.maximum[r] - maximum);
        factor = scale / (sums.total[r] * scale + exp_scalar(*sink - maximum));
    }
    for (int64_t d = 0; d < head_dim; d += kLanes)
        store_some(out + d, load(sums.out + r * depth + d) * splat(factor), head_dim - d);
}

// The keys and values of one tile at a time. Where the products can read the blocks in place they
// do; otherwise the tile is first gathered into panels (panel.h): keys [depth / W][64][W], values
// [64 / W][depth][W]. Both ways multiply the same numbers in the same order.
template <class T>
class KeyValueTile {
  public:
    using P = Panel<T>;
    using Activation = typename P::Activation;
    static constexpr int W = P::kPerWord;

    KeyValueTile(const AttentionArgs& args, int64_t sequence, int kv_head, int64_t depth)
        : args_(args),
          blocks_(args.block_table + sequence * args.block_table_stride),
          depth_(depth),
          staged_(scratch<T>(ScratchSlot::kTile, kTileTokens * depth)),
          head_values_(static_cast<int64_t>(args.block_size) * args.head_dim),
          head_offset_(kv_head * head_values_) {}

    // Chooses the tokens [tile, tile + 64); only those in [begin, end) are read.
    void select(int64_t tile, int64_t begin, int64_t end) {
        tile_ = tile;
        begin_ = max64(begin, tile);
        end_ = min64(end, tile + kTileTokens);
        limit_ = end;
        is_whole_ = end_ - begin_ == kTileTokens;
    }

    // Fetches a quarter of the tile after this one into the L2 cache. Called between the steps of a
    // tile: memory then works while the core computes.
    void fetch_next(int64_t quarter) const {
        const int64_t size = min64(args_.block_size, kTileTokens);
        const int64_t runs = kTileTokens / size;  // blocks per tile
        const int64_t bytes = size * args_.head_dim * static_cast<int64_t>(sizeof(T));
        const int64_t lines = bytes / 64, first = quarter * lines / 4, last = (quarter + 1) * lines / 4;
        for (int64_t run = 0; run < runs; run++) {
            const int64_t token = tile_ + kTileTokens + run * size;
            if (token >= limit_) return;
            const int64_t at = block_offset(token) + token % args_.block_size * args_.head_dim;
            const char* keys = reinterpret_cast<const char*>(static_cast<const T*>(args_.keys) + at);
            const char* values = reinterpret_cast<const char*>(static_cast<const T*>(args_.values) + at);
            for (int64_t line = first; line < last; line++) {
                __builtin_prefetch(keys + line * 64, 0, 2);
                __builtin_prefetch(values + line * 64, 0, 2);
            }
        }
    }

    // scores [rows][64] = queries [rows][depth] keys^T. Scores of tokens that are not read are anything.
    void score(const Activation* queries, int64_t rows, float* scores) {
        constexpr int kGroups = kTileTokens / kLanes;
        if constexpr (P::kReadsPieces) {
            if (is_whole_ && args_.block_size >= kLanes && depth_ == args_.head_dim) {
                TilesByGroup keys{{}, args_.block_size * kWordBytes};
                for (int64_t group = 0; group < kGroups; group++)
                    keys.base[group] = reinterpret_cast<const char*>(key(tile_ + group * kLanes));
                return P::multiply(queries, depth_, rows, keys, depth_, scores, kTileTokens, kGroups, false,
                                   Source::kCache);
            }
        }
        stage_keys();
        P::multiply(queries, depth_, rows, staged_, kTileTokens * W, depth_, scores, kTileTokens, kGroups, false,
                    Source::kCache);
    }

    // out [rows][depth] += probabilities [rows][64] values; the probability of a token that is not
    // read is 0.
    void add_values(const Activation* probabilities, int64_t rows, float* out) {
        const int groups = static_cast<int>(depth_ / kLanes);
        if constexpr (P::kReadsPieces) {
            constexpr int64_t kStepTokens = P::kDepthMultiple;
            if (is_whole_ && args_.block_size >= kStepTokens && depth_ == args_.head_dim) {
                TilesByStep values{{}, args_.head_dim * kWordBytes};
                for (int64_t step = 0; step < kTileTokens / kStepTokens; step++)
                    values.base[step] = reinterpret_cast<const char*>(value(tile_ + step * kStepTokens));
                return P::multiply(probabilities, kTileTokens, rows, values, kTileTokens, out, depth_, groups, true,
                                   Source::kCache);
            }
        }
        stage_values();
        P::multiply(probabilities, kTileTokens, rows, staged_, depth_ * W, kTileTokens, out, depth_, groups, true,
                    Source::kCache);
    }

  private:
    static constexpr int64_t kWordBytes = W * sizeof(T);

    // Where the head's part of the block of a token begins, in keys and in values.
    int64_t block_offset(int64_t token) const {
        const int64_t block = blocks_[token / args_.block_size];
        check_index("block id", block, args_.num_blocks);
        return block * args_.num_kv_heads * head_values_ + head_offset_;
    }

    // First word of a token's key; the next words follow at a distance of block_size words.
    const T* key(int64_t token) const {
        return static_cast<const T*>(args_.keys) + block_offset(token) + token % args_.block_size * W;
    }

    // First word of the value of a token and its W - 1 successors; rows of head_dim words.
    const T* value(int64_t token) const {
        return static_cast<const T*>(args_.values) + block_offset(token) + token % args_.block_size * args_.head_dim;
    }

    // Calls body(first token, tokens) for every run of the tile's tokens within one block.
    template <class Body>
    void for_each_run(Body&& body) const {
        const int64_t size = args_.block_size;
        for (int64_t block = begin_ / size; block * size < end_; block++) {
            const int64_t from = max64(block * size, tile_);
            body(from, min64(min64(size, kTileTokens), tile_ + kTileTokens - from));
        }
    }

    // Keys of tokens outside [begin, end) stay anything: their scores are not looked at.
    void stage_keys() {
        for_each_run([&](int64_t from, int64_t count) {
            T* to = staged_ + (from - tile_) * W;
            switch (count) {
                case 8: return copy_keys<8>(key(from), to);
                case 16: return copy_keys<16>(key(from), to);
                case 32: return copy_keys<32>(key(from), to);
                default: return copy_keys<64>(key(from), to);
            }
        });
        // Beyond the head dimension the queries are 0, and 0 * NaN is NaN.
        const int64_t used = static_cast<int64_t>(args_.head_dim) * kTileTokens;
        for (int64_t i = used; i < kTileTokens * depth_; i++) staged_[i] = T{};
    }

    template <int kTokens>
    void copy_keys(const T* __restrict from, T* __restrict to) const {
        const int64_t words = args_.head_dim / W, stride = static_cast<int64_t>(args_.block_size) * W;
        for (int64_t word = 0; word < words; word++, from += stride, to += kTileTokens * W)
            __builtin_memcpy(to, from, kTokens * W * sizeof(T));
    }

    // Values of tokens outside [begin, end) become 0: their probability 0 must not meet a NaN.
    void stage_values() {
        for_each_run([&](int64_t from, int64_t count) {
            copy_values(value(from), staged_ + (from - tile_) * depth_, count / W);
        });
        for (int64_t token = tile_; token < begin_; token++) clear_value(token - tile_);
        for (int64_t token = end_; token < tile_ + kTileTokens; token++) clear_value(token - tile_);
    }

    void copy_values(const T* __restrict from, T* __restrict to, int64_t word_rows) const {
        constexpr int64_t kLine = 64 / sizeof(T), kPart = 8;  // head_dim is a multiple of 8
        const int64_t n = static_cast<int64_t>(args_.head_dim) * W;
        for (int64_t row = 0; row < word_rows; row++, from += n, to += depth_ * W) {
            int64_t d = 0;
            for (; d + kLine <= n; d += kLine) __builtin_memcpy(to + d, from + d, kLine * sizeof(T));
            for (; d < n; d += kPart) __builtin_memcpy(to + d, from + d, kPart * sizeof(T));
        }
    }

    void clear_value(int64_t token) {
        T* to = staged_ + token / W * depth_ * W + token % W;
        for (int64_t d = 0; d < depth_; d++) to[d * W] = T{};
    }

    const AttentionArgs& args_;
    const int32_t* blocks_;
    int64_t depth_;
    T* staged_;  // keys, then values: half a tile at a time stays in the L1 cache
    int64_t head_values_;
    int64_t head_offset_;
    int64_t tile_ = 0, begin_ = 0, end_ = 0, limit_ = 0;
    bool is_whole_ = false;
};

// One row of scores [64]: scale, soft cap, mask; updates the running maximum and total, rescales
// what has been summed, and writes the probabilities of the visible columns [begin, end).
template <class Activation>
inline void softmax_row(const AttentionArgs& args, const float* scores, int64_t begin, int64_t end,
                        const Partial& sums, int64_t r, int64_t depth, Activation* probabilities) {
    constexpr int kGroups = kTileTokens / kLanes;
    if (begin >= end) {
        for (int j = 0; j < kGroups; j++) store(probabilities + j * kLanes, zero());
        return;
    }
    const uint64_t visible = (end >= 64 ? ~uint64_t{0} : (uint64_t{1} << end) - 1) & ~((uint64_t{1} << begin) - 1);
    F16 x[kGroups];
    F16 largest = splat(-kInfinity);
    for (int j = 0; j < kGroups; j++) {
        x[j] = load(scores + j * kLanes) * splat(args.scale);
        if (args.softcap > 0.0f) x[j] = splat(args.softcap) * tanh(x[j] / splat(args.softcap));
        const auto mask = static_cast<uint32_t>(visible >> (j * kLanes)) & 0xffffu;
        x[j] = keep(mask, x[j]) + keep(~mask & 0xffffu, splat(-kInfinity));
        largest = max(largest, x[j]);
    }
    const float before = sums.maximum[r];
    const float tile_maximum = reduce_max(largest);
    const float maximum = tile_maximum > before ? tile_maximum : before;
    F16 sum = zero();
    for (int j = 0; j < kGroups; j++) {
        x[j] = exp(x[j] - splat(maximum));
        sum = sum + x[j];
        store(probabilities + j * kLanes, x[j]);
    }
    const float tile_total = reduce_add(sum);
    if (maximum == before) {
        sums.total[r] += tile_total;
        return;
    }
    const float factor = exp_scalar(before - maximum);
    sums.total[r] = sums.total[r] * factor + tile_total;
    sums.maximum[r] = maximum;
    float* out = sums.out + r * depth;
    for (int64_t d = 0; d < depth; d += kLanes) store(out + d, load(out + d) * splat(factor));
}

}  // namespace triolet::TRIOLET_ISA
