#include "common/pack.h"

#include <cmath>
#include <stdexcept>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "common/thread_pool.h"

namespace triolet {
namespace {

constexpr int64_t kGroup = 32;  // of w4a8

int64_t padded_k(WeightFormat format, int64_t k) {
    switch (format) {
        case WeightFormat::kFloat32: return k;
        case WeightFormat::kW8A8: return round_up(k, 64);
        default: return round_up(k, kGroup);
    }
}

// Row n of the weight, and zeros beyond its edges.
template <class T>
struct Source {
    const T* weight;
    int64_t n, k;
    float at(int64_t row, int64_t column) const {
        return row < n && column < k ? to_float(weight[row * k + column]) : 0.0f;
    }
    float largest(int64_t row) const {
        if (row >= n) return 0.0f;
        const T* values = weight + row * k;
        float best = 0.0f;
        for (int64_t column = 0; column < k; column++) {
            const float size = std::fabs(to_float(values[column]));
            best = size > best ? size : best;
        }
        return best;
    }
};

// Calls body(c, row, column) for every place of a panel, in pieces of 64 outputs x 32 k: what is
// written, at strides of a row of words, then stays in the L1 cache until its lines are full.
template <class Body>
inline void for_each_place(int64_t panel, int64_t k_padded, Body&& body) {
    constexpr int64_t kPiece = 32;
    for (int64_t first = 0; first < k_padded; first += kPiece) {
        const int64_t end = min64(first + kPiece, k_padded);
        for (int64_t c = 0; c < kPanelColumns; c++)
            for (int64_t column = first; column < end; column++) body(c, panel * kPanelColumns + c, column);
    }
}

// Words of kPerWord neighbouring k, unchanged values.
template <class T, int kPerWord>
void pack_plain(const T* weight, int64_t n, int64_t k, int64_t k_padded, int64_t panel, T* out) {
    for_each_place(panel, k_padded, [&](int64_t c, int64_t row, int64_t column) {
        const int64_t to = (column / kPerWord * kPanelColumns + c) * kPerWord + column % kPerWord;
        out[to] = row < n && column < k ? weight[row * k + column] : T{};
    });
}

// The nearest integer, ties to even, for |x| < 2^22: adding 1.5 * 2^23 leaves no room for a fraction.
inline int32_t nearest(float x) {
    float shifted = x + 12582912.0f;
    int32_t bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    return bits - 0x4b400000;
}

// One scale per output: the largest magnitude becomes 127.
template <class T>
void pack_w8(const Source<T>& source, int64_t k_padded, int64_t panel, int8_t* out, float* scales, int32_t* sums) {
    float inverse[kPanelColumns];
    for (int64_t c = 0; c < kPanelColumns; c++) {
        const float largest = source.largest(panel * kPanelColumns + c);
        inverse[c] = largest > 0.0f ? 127.0f / largest : 0.0f;
        scales[c] = largest / 127.0f;
        sums[c] = 0;
    }
    for_each_place(panel, k_padded, [&](int64_t c, int64_t row, int64_t column) {
        const int32_t q = nearest(source.at(row, column) * inverse[c]);
        out[(column / 4 * kPanelColumns + c) * 4 + column % 4] = static_cast<int8_t>(q);
        sums[c] += 128 * q;  // activations are stored with 128 added
    });
}

// Symmetric, values -8..7. The signed extreme of a group becomes -8 exactly, as in GGUF's Q4_0.
template <class T>
void pack_w4(const Source<T>& source, int64_t k_padded, int64_t panel, uint8_t* out, bf16* scales) {
    for (int64_t group = 0; group < k_padded / kGroup; group++) {
        for (int64_t c = 0; c < kPanelColumns; c++) {
            const int64_t row = panel * kPanelColumns + c;
            float extreme = 0.0f;
            for (int64_t i = 0; i < kGroup; i++) {
                const float x = source.at(row, group * kGroup + i);
                if (std::fabs(x) > std::fabs(extreme)) extreme = x;
            }
            const bf16 scale = to_bf16(extreme / -8.0f);
            const float value = to_float(scale);
            const float inverse = value != 0.0f ? 1.0f / value : 0.0f;
            scales[group * kPanelColumns + c] = scale;
            for (int64_t i = 0; i < kGroup; i++) {
                const float x = source.at(row, group * kGroup + i);
                int32_t q = nearest(x * inverse) + 8;
                q = q < 0 ? 0 : (q > 15 ? 15 : q);
                const int64_t quad = i / 4;
                uint8_t& byte = out[((group * 4 + quad / 2) * kPanelColumns + c) * 4 + i % 4];
                byte = static_cast<uint8_t>(quad % 2 == 0 ? q : byte | q << 4);
            }
        }
    }
}

template <class T>
void pack_quantized(ThreadPool& pool, WeightFormat format, const T* weight, int64_t n, int64_t k, void* packed,
                    void* scales, int32_t* sums) {
    const Source<T> source{weight, n, k};
    const int64_t k_padded = padded_k(format, k);
    pool.parallel_for(ceil_div(n, kPanelColumns), [&](int64_t panel) {
        const int64_t first = panel * kPanelColumns;
        if (format == WeightFormat::kW8A8)
            pack_w8(source, k_padded, panel, static_cast<int8_t*>(packed) + first * k_padded,
                    static_cast<float*>(scales) + first, sums + first);
        else
            pack_w4(source, k_padded, panel, static_cast<uint8_t*>(packed) + first * k_padded / 2,
                    static_cast<bf16*>(scales) + first * k_padded / kGroup);
    });
}

}  // namespace

int64_t packed_bytes(WeightFormat format, int64_t n, int64_t k) {
    const int64_t values = round_up(n, kPanelColumns) * padded_k(format, k);
    switch (format) {
        case WeightFormat::kFloat32: return values * 4;
        case WeightFormat::kBfloat16: return values * 2;
        case WeightFormat::kW8A8: return values;
        default: return values / 2;
    }
}

int64_t scale_bytes(WeightFormat format, int64_t n, int64_t k) {
    const int64_t columns = round_up(n, kPanelColumns);
    if (format == WeightFormat::kW8A8) return columns * static_cast<int64_t>(sizeof(float));
    if (format == WeightFormat::kW4A8)
        return columns * padded_k(format, k) / kGroup * static_cast<int64_t>(sizeof(bf16));
    return 0;
}

void advise_huge_pages(void* memory, int64_t bytes) {
#if defined(__linux__)
    constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(memory) + kHugePage - 1) / kHugePage * kHugePage;
    const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + static_cast<uintptr_t>(bytes)) / kHugePage * kHugePage;
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
    (void)memory;
    (void)bytes;
#endif
}

void pack_weight(ThreadPool& pool, WeightFormat format, const void* weight, DType dtype, int64_t n, int64_t k,
                 void* packed, void* scales, int32_t* sums) {
    advise_huge_pages(packed, packed_bytes(format, n, k));
    const int64_t panels = ceil_div(n, kPanelColumns);
    const int64_t k_padded = padded_k(format, k);
    const int64_t per_panel = kPanelColumns * k_padded;
    const auto* floats = static_cast<const float*>(weight);
    const auto* halves = static_cast<const bf16*>(weight);
    switch (format) {
        case WeightFormat::kFloat32:
            if (dtype != DType::kFloat32) throw std::invalid_argument("a float32 weight is needed");
            return pool.parallel_for(panels, [&](int64_t panel) {
                pack_plain<float, 1>(floats, n, k, k_padded, panel, static_cast<float*>(packed) + panel * per_panel);
            });
        case WeightFormat::kBfloat16:
            if (dtype != DType::kBfloat16) throw std::invalid_argument("a bfloat16 weight is needed");
            return pool.parallel_for(panels, [&](int64_t panel) {
                pack_plain<bf16, 2>(halves, n, k, k_padded, panel, static_cast<bf16*>(packed) + panel * per_panel);
            });
        default:
            if (dtype == DType::kFloat32)
                return pack_quantized(pool, format, floats, n, k, packed, scales, sums);
            return pack_quantized(pool, format, halves, n, k, packed, scales, sums);
    }
}

}  // namespace triolet
