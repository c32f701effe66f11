// Weights in the order in which the kernels read them: once, at load.
//
// A panel is 64 outputs (rows of W); panel after panel. Within a panel, words of neighbouring k:
//   float32  [K][64]
//   bf16     [K32 / 2][64][2]     K32: K rounded up to 32
//   w8a8     [K64 / 4][64][4]     K64: K rounded up to 64; int8, one float scale per output
//   w4a8     [K32 / 32][4][64][4] 32 k are a group with one bf16 scale per output; a byte holds
//            the k of the even quad (low nibble) and the odd quad (high), value + 8
// Padding is zero. The order is the same for every instruction set.
#pragma once

#include "common/kernel_table.h"
#include "common/types.h"

namespace triolet {

enum class WeightFormat : int { kFloat32 = 0, kBfloat16 = 1, kW8A8 = 2, kW4A8 = 3 };

// Bytes of the packed weight [n, k], and of its scales.
int64_t packed_bytes(WeightFormat format, int64_t n, int64_t k);
int64_t scale_bytes(WeightFormat format, int64_t n, int64_t k);

// Asks for large pages under memory that has not been touched: one TLB entry instead of 512. Only
// a hint.
void advise_huge_pages(void* memory, int64_t bytes);

// Packs row-major `weight` [n, k] of type `dtype`. float32 and bf16 must be the dtype of the
// weight; the quantized formats take either. `sums` [n padded to 64] is written for w8a8 only.
void pack_weight(ThreadPool& pool, WeightFormat format, const void* weight, DType dtype, int64_t n, int64_t k,
                 void* packed, void* scales, int32_t* sums);

}  // namespace triolet
