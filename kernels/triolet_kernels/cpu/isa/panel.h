// The one primitive under every matrix product here, of linears and of attention:
//
//   c[r][n] (+)= sum over k of a[r][k] * b[k][n]        r < rows, n < 16 * groups
//
// b is a packed panel: a word of b holds the kPerWord values of neighbouring k of one column, and
// b_stride elements lie between the words of k and those of the next k. Sums are float32.
//
// Batch invariance rests on this file: an element of c is accumulated over k from first to last
// in one accumulator, in the same instructions, whatever its row, its column and `rows` are.
//
// Panel<float> and Panel<bf16> are the arithmetic of this instruction set:
//   Activation      element type of a
//   kDepthMultiple  depth (number of k) must be a multiple; pad with zeros
//   kRowMultiple    rows of a and c that must exist in memory
//   kRowBlock       rows that one call computes best
//   kReadsPieces    b may also be given in pieces (tile_pieces.h)
//   Scope           must live around calls (AMX: tile configuration of the thread)
#pragma once

#include "isa/simd.h"
#include "isa/tile_pieces.h"

namespace triolet::TRIOLET_ISA {

// Packed weights are read once per pass, from memory: this far ahead hides its latency.
inline constexpr int64_t kPrefetchBytes = 8192;

enum class Source { kCache, kMemory };

// ---- how one word of each type enters a sum ------------------------------------------------

struct Fp32Arithmetic {
    using Weight = float;
    using Activation = float;
    static constexpr int kPerWord = 1;
    using Word = F16;
    static TRIOLET_INLINE Word load_word(const float* b) { return load(b); }
    static TRIOLET_INLINE F16 step(F16 sum, const float* a, Word b) { return fma(splat(a[0]), b, sum); }
};

#if defined(__AVX512BF16__)
struct Bf16Arithmetic {
    using Weight = bf16;
    using Activation = bf16;
    static constexpr int kPerWord = 2;
    using Word = __m512bh;
    static TRIOLET_INLINE Word load_word(const bf16* b) { return (__m512bh)_mm512_loadu_si512(b); }
    static TRIOLET_INLINE F16 step(F16 sum, const bf16* a, Word b) {
        int32_t pair;
        __builtin_memcpy(&pair, a, sizeof pair);
        return {_mm512_dpbf16_ps(sum.v, (__m512bh)_mm512_set1_epi32(pair), b)};
    }
};
#else
struct Bf16Arithmetic {
    using Weight = bf16;
    using Activation = float;
    static constexpr int kPerWord = 2;
    struct Word {
        F16 even, odd;
    };
    static TRIOLET_INLINE Word load_word(const bf16* b) {
        Word word;
        load_pairs(b, word.even, word.odd);
        return word;
    }
    static TRIOLET_INLINE F16 step(F16 sum, const float* a, Word b) {
        return fma(splat(a[1]), b.odd, fma(splat(a[0]), b.even, sum));
    }
};
#endif

// Accumulators of one block: R rows times J groups of 16 columns, with J words of b beside them.
#if defined(__AVX512F__)
inline constexpr int kBlockRows = 6, kBlockGroups = 4;  // 24 of 32 registers
#elif defined(__AVX2__)
inline constexpr int kBlockRows = 3, kBlockGroups = 1;  // 6 of 16, a word of b takes 4
#else
inline constexpr int kBlockRows = 2, kBlockGroups = 1;
#endif

// ---- vector registers ------------------------------------------------------------------------

template <class Arithmetic>
struct VectorPanel {
    using Weight = typename Arithmetic::Weight;
    using Activation = typename Arithmetic::Activation;
    static constexpr int kPerWord = Arithmetic::kPerWord;
    static constexpr int kDepthMultiple = kPerWord;
    static constexpr int kRowMultiple = 1;
    static constexpr int kRowBlock = kBlockRows * 4;
    static constexpr bool kReadsPieces = false;
    struct Scope {
        Scope() {}  // not trivial, so that an unused Scope is no warning
    };

    template <int R, int J>
    static inline void block(const Activation* a, int64_t a_stride, const Weight* b, int64_t b_stride,
                             int64_t words, float* c, int64_t c_stride, bool accumulate, Source source) {
        F16 sum[R][J];
        for (int r = 0; r < R; r++)
            for (int j = 0; j < J; j++)
                sum[r][j] = accumulate ? load(c + r * c_stride + kLanes * j) : zero();
        for (int64_t w = 0; w < words; w++) {
            const Weight* row = b + w * b_stride;
            typename Arithmetic::Word word[J];
#pragma GCC unroll 4
            for (int j = 0; j < J; j++) {
                word[j] = Arithmetic::load_word(row + j * kLanes * kPerWord);
                if (source == Source::kMemory)
                    __builtin_prefetch(reinterpret_cast<const char*>(row + j * kLanes * kPerWord) + kPrefetchBytes);
            }
#pragma GCC unroll 6
            for (int r = 0; r < R; r++)
#pragma GCC unroll 4
                for (int j = 0; j < J; j++)
                    sum[r][j] = Arithmetic::step(sum[r][j], a + r * a_stride + w * kPerWord, word[j]);
        }
        for (int r = 0; r < R; r++)
            for (int j = 0; j < J; j++) store(c + r * c_stride + kLanes * j, sum[r][j]);
    }

    template <int J>
    static void rows_of(const Activation* a, int64_t a_stride, int64_t rows, const Weight* b, int64_t b_stride,
                        int64_t words, float* c, int64_t c_stride, bool accumulate, Source source) {
        int64_t r = 0;
        for (; r + kBlockRows <= rows; r += kBlockRows)
            block<kBlockRows, J>(a + r * a_stride, a_stride, b, b_stride, words, c + r * c_stride, c_stride,
                                 accumulate, r == 0 ? source : Source::kCache);
        a += r * a_stride;
        c += r * c_stride;
        if (r > 0) source = Source::kCache;
        switch (rows - r) {
            case 1: return block<1, J>(a, a_stride, b, b_stride, words, c, c_stride, accumulate, source);
            case 2: return block<2, J>(a, a_stride, b, b_stride, words, c, c_stride, accumulate, source);
            case 3: return block<3, J>(a, a_stride, b, b_stride, words, c, c_stride, accumulate, source);
            case 4: return block<4, J>(a, a_stride, b, b_stride, words, c, c_stride, accumulate, source);
            case 5: return block<5, J>(a, a_stride, b, b_stride, words, c, c_stride, accumulate, source);
            default: return;
        }
    }

    static void multiply(const Activation* a, int64_t a_stride, int64_t rows, const Weight* b, int64_t b_stride,
                         int64_t depth, float* c, int64_t c_stride, int groups, bool accumulate, Source source) {
        const int64_t words = depth / kPerWord;
        constexpr int kWeightsPerGroup = kLanes * kPerWord;
        int j = 0;
        for (; j + kBlockGroups <= groups; j += kBlockGroups)
            rows_of<kBlockGroups>(a, a_stride, rows, b + j * kWeightsPerGroup, b_stride, words, c + j * kLanes,
                                  c_stride, accumulate, source);
        for (; j < groups; j++)
            rows_of<1>(a, a_stride, rows, b + j * kWeightsPerGroup, b_stride, words, c + j * kLanes, c_stride,
                       accumulate, source);
    }
};

template <class Element>
struct Panel;

template <>
struct Panel<float> : VectorPanel<Fp32Arithmetic> {};

}  // namespace triolet::TRIOLET_ISA

#if defined(__AMX_BF16__)
#include "isa/panel_amx.h"
#else
namespace triolet::TRIOLET_ISA {
template <>
struct Panel<bf16> : VectorPanel<Bf16Arithmetic> {};
}  // namespace triolet::TRIOLET_ISA
#endif
