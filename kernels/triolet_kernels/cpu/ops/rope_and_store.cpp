// From the rows of the QKV projection to what attention needs: norm q and k per head, rotate
// them, write k and v into the paged cache. In float32, rounded once at the end.
//
// The rotation is the half-split one: with r = rotary_dim / 2 and i < r,
//   out[i]     = x[i] cos[i] - x[i + r] sin[i]
//   out[i + r] = x[i + r] cos[i] + x[i] sin[i]
// and the dimensions from rotary_dim on stay as they are.
#include "common/checks.h"
#include "ops/linear.h"
#include "ops/table.h"

namespace triolet::TRIOLET_ISA {
namespace {

constexpr int kMaxHeadDim = 512;

// Head vector as float32 in `out`: converted and, with a weight, normed.
template <class T>
void norm_head(const T* x, const T* weight, const RopeStoreArgs& args, float* out) {
    const int64_t n = args.head_dim;
    F16 sum = zero();
    for (int64_t i = 0; i < n; i += kLanes) {
        const F16 value = load_some(x + i, n - i);
        store_some(out + i, value, n - i);
        sum = fma(value, value, sum);
    }
    if (weight == nullptr) return;
    const F16 inverse = splat(1.0f / std::sqrt(reduce_add(sum) / static_cast<float>(n) + args.eps));
    const F16 offset = splat(args.offset);
    for (int64_t i = 0; i < n; i += kLanes) {
        const F16 scaled = load_some(out + i, n - i) * inverse;
        store_some(out + i, scaled * (load_some(weight + i, n - i) + offset), n - i);
    }
}

void rotate_head(float* x, const float* cos, const float* sin, int64_t half) {
    for (int64_t i = 0; i < half; i += kLanes) {
        const int64_t n = half - i;
        const F16 a = load_some(x + i, n), b = load_some(x + half + i, n);
        const F16 c = load_some(cos + i, n), s = load_some(sin + i, n);
        store_some(x + i, a * c - b * s, n);
        store_some(x + half + i, b * c + a * s, n);
    }
}

template <class T>
void store_head(const float* x, T* out, int64_t n) {
    for (int64_t i = 0; i < n; i += kLanes) store_some(out + i, load_some(x + i, n - i), n - i);
}

// Element d of the token at `offset` of a block: keys[d / W][offset][d % W].
template <class T, int kPerWord>
void scatter_key(const float* x, T* block, int64_t offset, int64_t block_size, int64_t n) {
    for (int64_t d = 0; d < n; d++) assign(block[(d / kPerWord * block_size + offset) * kPerWord + d % kPerWord], x[d]);
}

// Element d of the token at `offset` of a block: values[offset / W][d][offset % W].
template <class T, int kPerWord>
void scatter_value(const T* x, T* block, int64_t offset, int64_t n) {
    T* to = block + offset / kPerWord * n * kPerWord + offset % kPerWord;
    for (int64_t d = 0; d < n; d++) to[d * kPerWord] = x[d];
}

template <class T>
void one_row(const RopeStoreArgs& args, int64_t row) {
    constexpr int kPerWord = sizeof(T) == 2 ? 2 : 1;
    const int64_t n = args.head_dim, half = args.rotary_dim / 2, block_size = args.block_size;
    const T* head = static_cast<const T*>(args.qkv) + row * (args.num_heads + 2 * args.num_kv_heads) * n;
    const float* cos = args.cos != nullptr ? args.cos + args.positions[row] * half : nullptr;
    const float* sin = args.sin != nullptr ? args.sin + args.positions[row] * half : nullptr;
    const int64_t block = args.slots[row] / block_size, offset = args.slots[row] % block_size;
    const int64_t block_values = block_size * n;
    T* keys = static_cast<T*>(args.keys) + block * args.num_kv_heads * block_values;
    T* values = static_cast<T*>(args.values) + block * args.num_kv_heads * block_values;
    alignas(64) float x[kMaxHeadDim];

    for (int h = 0; h < args.num_heads; h++, head += n) {
        norm_head(head, static_cast<const T*>(args.q_norm), args, x);
        rotate_head(x, cos, sin, half);
        store_head(x, static_cast<T*>(args.q_out) + (row * args.num_heads + h) * n, n);
    }
    for (int h = 0; h < args.num_kv_heads; h++, head += n) {
        norm_head(head, static_cast<const T*>(args.k_norm), args, x);
        rotate_head(x, cos, sin, half);
        scatter_key<T, kPerWord>(x, keys + h * block_values, offset, block_size, n);
    }
    for (int h = 0; h < args.num_kv_heads; h++, head += n)
        scatter_value<T, kPerWord>(head, values + h * block_values, offset, n);
}

template <class T>
void rope_and_store_of(ThreadPool& pool, const RopeStoreArgs& args) {
    constexpr int64_t kRowsPerTile = 4;
    for_row_runs(pool, args.rows, kRowsPerTile, [&](int64_t first, int64_t end) {
        for (int64_t row = first; row < end; row++) one_row<T>(args, row);
    });
}

}  // namespace

void rope_and_store(ThreadPool& pool, const RopeStoreArgs& args) {
    check_indices("slot", args.slots, args.rows, args.num_blocks * args.block_size);
    if (args.rotary_dim > 0) check_indices("position", args.positions, args.rows, args.max_positions);
    if (args.dtype == DType::kFloat32)
        rope_and_store_of<float>(pool, args);
    else
        rope_and_store_of<bf16>(pool, args);
}

}  // namespace triolet::TRIOLET_ISA
