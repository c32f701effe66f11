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

// Keys and values of a tile, gathered from their blocks into panels (panel.h):
// keys [depth / W][64][W], values [64 / W][depth][W].
template <class T>
class StagedTile {
  public:
    static constexpr int W = Panel<T>::kPerWord;

    StagedTile(const AttentionArgs& args, int64_t sequence, int kv_head, int64_t depth)
        : args_(args),
          blocks_(args.block_table + sequence * args.block_table_stride),
          depth_(depth),
          keys_(scratch<T>(ScratchSlot::kTile, 2 * kTileTokens * depth)),
          values_(keys_ + kTileTokens * depth),
          head_values_(static_cast<int64_t>(args.block_size) * args.head_dim),
          head_offset_(kv_head * head_values_) {
        // Rows of keys beyond the head dimension: the queries are 0 there, and 0 * NaN is NaN.
        const int64_t used = static_cast<int64_t>(args.head_dim) * kTileTokens;
        for (int64_t i = used; i < kTileTokens * depth; i++) keys_[i] = T{};
    }

    const T* keys() const { return keys_; }
    const T* values() const { return values_; }

    // Gathers the tokens [tile, tile + 64) that lie in [begin, end). Keys of others stay anything;
    // their values become 0, because their probability 0 must not meet a NaN.
    void load(int64_t tile, int64_t begin, int64_t end) {
        const int64_t size = args_.block_size;
        const int64_t first = max64(begin, tile), last = min64(end, tile + kTileTokens);
        for (int64_t block = first / size; block * size < last; block++) {
            check_index("block id", blocks_[block], args_.num_blocks);
            const int64_t from = max64(block * size, tile);
            const int64_t count = min64(min64(size, kTileTokens), tile + kTileTokens - from);
            const int64_t at = (blocks_[block] * static_cast<int64_t>(args_.num_kv_heads)) * head_values_ + head_offset_;
            copy_keys(static_cast<const T*>(args_.keys) + at + from % size * W, from - tile, count);
            copy_values(static_cast<const T*>(args_.values) + at + from % size * args_.head_dim, from - tile, count);
        }
        for (int64_t token = tile; token < first; token++) clear_value(token - tile);
        for (int64_t token = last; token < tile + kTileTokens; token++) clear_value(token - tile);
    }

  private:
    template <int kTokens>
    void copy_keys_of(const T* from, int64_t column) {
        for (int64_t word = 0; word < args_.head_dim / W; word++)
            __builtin_memcpy(keys_ + (word * kTileTokens + column) * W, from + word * args_.block_size * W,
                             kTokens * W * sizeof(T));
    }

    void copy_keys(const T* from, int64_t column, int64_t count) {
        switch (count) {
            case 8: return copy_keys_of<8>(from, column);
            case 16: return copy_keys_of<16>(from, column);
            case 32: return copy_keys_of<32>(from, column);
            default: return copy_keys_of<64>(from, column);
        }
    }

    void copy_values(const T* from, int64_t row, int64_t count) {
        const int64_t n = static_cast<int64_t>(args_.head_dim) * W;
        for (int64_t i = 0; i < count / W; i++) {
            T* to = values_ + (row / W + i) * depth_ * W;
            for (int64_t d = 0; d < n; d += 8) __builtin_memcpy(to + d, from + i * n + d, 8 * sizeof(T));
        }
    }

    void clear_value(int64_t token) {
        T* to = values_ + token / W * depth_ * W + token % W;
        for (int64_t d = 0; d < depth_; d++) to[d * W] = T{};
    }

    const AttentionArgs& args_;
    const int32_t* blocks_;
    int64_t depth_;
    T* keys_;
    T* values_;
    int64_t head_values_;
    int64_t head_offset_;
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
