// Rows of a packed table. A model with tied weights keeps one copy: the head's.
#include "common/checks.h"
#include "ops/linear.h"
#include "ops/table.h"

namespace triolet::TRIOLET_ISA {
namespace {

// Values of row `id`: word w of the row lies at panel[w][id % 64].
template <class T, class Packed, int kPerWord, class Convert>
void gather_row(const Packed* table, int64_t id, int64_t k, int64_t k_padded, T* out, Convert&& convert) {
    const int64_t panel = id / kPanelColumns, column = id % kPanelColumns;
    const Packed* word = table + (panel * k_padded * kPanelColumns) + column * kPerWord;
    for (int64_t i = 0; i < k; i += kPerWord, word += kPanelColumns * kPerWord)
        for (int64_t j = 0; j < kPerWord && i + j < k; j++) out[i + j] = convert(word[j]);
}

template <class T>
void embedding_of(ThreadPool& pool, const EmbeddingArgs& args) {
    constexpr int64_t kRowsPerTile = 8;
    const int64_t k = args.hidden;
    for_row_runs(pool, args.rows, kRowsPerTile, [&](int64_t first, int64_t end) {
        for (int64_t row = first; row < end; row++) {
            const int64_t id = args.ids[row];
            T* out = static_cast<T*>(args.out) + row * k;
            if (args.scales != nullptr) {
                const float scale = args.scales[id];
                gather_row<T, int8_t, 4>(static_cast<const int8_t*>(args.table), id, k, round_up(k, 64), out,
                                         [scale](int8_t q) {
                                             T value;
                                             assign(value, static_cast<float>(q) * scale);
                                             return value;
                                         });
            } else {
                constexpr int kPerWord = sizeof(T) == 2 ? 2 : 1;
                gather_row<T, T, kPerWord>(static_cast<const T*>(args.table), id, k,
                                           kPerWord == 2 ? round_up(k, 32) : k, out, [](T value) { return value; });
            }
        }
    });
}

}  // namespace

void embedding(ThreadPool& pool, const EmbeddingArgs& args) {
    check_indices("token id", args.ids, args.rows, args.vocabulary);
    if (args.dtype == DType::kFloat32)
        embedding_of<float>(pool, args);
    else
        embedding_of<bf16>(pool, args);
}

}  // namespace triolet::TRIOLET_ISA
