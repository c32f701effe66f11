// What the Python module calls: one table of functions per instruction set.
//
// Letters as in triolet_kernels/ops.py: T rows, H hidden size, N x K weight, HQ/HKV heads, D head
// dimension, BS tokens per block, V vocabulary. Matrices are row-major; strides count elements.
#pragma once

#include <cstdint>

namespace triolet {

class ThreadPool;

enum class DType : int { kFloat32 = 0, kBfloat16 = 1 };
enum class ActivationKind : int { kSilu = 0, kGeluTanh = 1, kGelu = 2 };

// Packed weights: panels of 64 columns (outputs), see pack.h. N is padded to 64 with zeros.
inline constexpr int kPanelColumns = 64;

// y = x W^T + bias; x [rows, K] in `dtype`, y [rows, N] in `dtype`, or float32 if `float_output`.
struct LinearArgs {
    const void* x;
    const void* weight;         // packed
    const void* weight_scales;  // w8a8: float [N64]; w4a8: bf16 [N64/64][K/32][64]; else unused
    const int32_t* weight_sums;  // w8a8: 128 * sum over k of the weight, [N64]; else unused
    const float* bias;           // [N64] or null
    void* y;
    int64_t rows, n, k;
    DType dtype;
    bool float_output;
};

// out[t] = row ids[t] of a packed table [V, H]; `scales` is set for a w8a8 table.
struct EmbeddingArgs {
    const int64_t* ids;
    const void* table;
    const float* scales;
    void* out;
    int64_t rows, vocabulary, hidden;
    DType dtype;
};

// [residual += (inner_weight ? rms_norm(x, inner_weight) : x)]; out = rms_norm(residual or x, weight)
struct RmsNormArgs {
    const void* x;
    void* residual;            // updated in place, or null
    const void* inner_weight;  // or null
    const void* weight;
    void* out;
    int64_t rows, hidden;
    float eps, offset;
    DType dtype;
};

struct GatedActivationArgs {
    const void* gate_up;  // [rows, 2 * intermediate]
    void* out;            // [rows, intermediate]
    int64_t rows, intermediate;
    ActivationKind kind;
    DType dtype;
};

// Paged cache of one layer: keys [block][HKV][D/W][BS][W], values [block][HKV][BS/W][D][W], W = 2
// for bf16 (the pairs that the bf16 dot product takes) and 1 for float32.
struct RopeStoreArgs {
    const void* qkv;  // [rows, (HQ + 2 HKV) D]
    void* q_out;      // [rows, HQ, D]
    void* keys;
    void* values;
    const int64_t* positions;
    const int64_t* slots;
    const float* cos;  // [positions, rotary_dim / 2], or null if rotary_dim is 0
    const float* sin;
    const void* q_norm;  // [D], or null
    const void* k_norm;
    int64_t rows, num_blocks, max_positions;  // max_positions: rows of cos and sin
    int num_heads, num_kv_heads, head_dim, block_size, rotary_dim;
    float eps, offset;
    DType dtype;
};

struct AttentionArgs {
    const void* q;  // [rows, HQ, D]
    void* out;      // like q
    const void* keys;
    const void* values;
    const int64_t* positions;      // [rows]
    const int32_t* query_starts;   // [sequences + 1]
    const int32_t* block_table;    // [sequences, block_table_stride]
    const float* sinks;            // [HQ], or null
    int64_t sequences, block_table_stride, num_blocks;
    int num_heads, num_kv_heads, head_dim, block_size;
    int64_t window;  // tokens attended to; 0 is all
    float scale;
    float softcap;  // 0 is none
    DType dtype;
};

struct SampleArgs {
    const float* logits;  // [rows, V]
    const float* temperature;  // null: every row is greedy
    const int32_t* top_k;
    const float* top_p;
    const float* min_p;
    const double* uniform;
    int64_t* tokens;  // [rows]; -1 where a row that samples has a NaN or no finite logit
    int64_t rows, vocabulary;
};

struct LogprobsArgs {
    const float* logits;  // [rows, V]
    const int64_t* tokens;
    float* logprobs;       // [rows]
    int64_t* ranks;        // [rows]
    int64_t* top_ids;      // [rows, k]
    float* top_logprobs;   // [rows, k]
    int64_t rows, vocabulary, k;
};

struct KernelTable {
    void (*linear)(ThreadPool&, const LinearArgs&);
    void (*linear_w8a8)(ThreadPool&, const LinearArgs&);
    void (*linear_w4a8)(ThreadPool&, const LinearArgs&);
    void (*embedding)(ThreadPool&, const EmbeddingArgs&);
    void (*rms_norm)(ThreadPool&, const RmsNormArgs&);
    void (*gated_activation)(ThreadPool&, const GatedActivationArgs&);
    void (*rope_and_store)(ThreadPool&, const RopeStoreArgs&);
    void (*paged_attention)(ThreadPool&, const AttentionArgs&);
    void (*sample)(ThreadPool&, const SampleArgs&);
    void (*top_logprobs)(ThreadPool&, const LogprobsArgs&);
};

}  // namespace triolet
