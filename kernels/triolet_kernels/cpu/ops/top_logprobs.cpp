// log_softmax of a row at one token and at the k best, with the rank of the token.
#include <algorithm>

#include "ops/linear.h"
#include "ops/logits_scan.h"
#include "ops/table.h"

namespace triolet::TRIOLET_ISA {
namespace {

// log(sum of exp(x)), as float; block sums are added up in double.
float log_sum_exp(const float* x, int64_t n, float largest) {
    double total = 0.0;
    for (int64_t block = 0; block < block_count(n); block++) {
        const int64_t begin = block * kBlockLogits, end = min64(begin + kBlockLogits, n);
        F16 sum = zero();
        for (int64_t i = begin; i < end; i += kLanes) sum = sum + exp(load_logits(x, i, n) - splat(largest));
        total += static_cast<double>(reduce_add(sum));
    }
    return largest + static_cast<float>(log(total));
}

// 1 + the number of tokens with a larger logit, or the same one and a smaller id.
int64_t rank_of(const float* x, int64_t n, int64_t token) {
    const F16 value = splat(x[token]);
    int64_t better = 0;
    for (int64_t i = 0; i < n; i += kLanes) {
        const F16 lanes = load_logits(x, i, n);
        uint32_t mask = mask_gt(lanes, value);
        if (i + kLanes <= token)
            mask = mask_ge(lanes, value);
        else if (i < token)
            mask |= mask_eq(lanes, value) & ((1u << (token - i)) - 1u);
        better += __builtin_popcount(mask);
    }
    return better + 1;
}

// The k best, best first. `limit` rises with the worst of the k found so far.
void top_k(const float* x, int64_t n, int64_t k, const BlockMaximum* maxima, Candidate* best) {
    int64_t count = 0;
    for (int64_t block = 0; block < block_count(n); block++) {
        const int64_t begin = block * kBlockLogits, end = min64(begin + kBlockLogits, n);
        if (count == k && !(maxima[block].value > best[0].value)) continue;
        for (int64_t i = begin; i < end; i++) {
            // A NaN has no place in an order: last.
            const Candidate candidate{x[i] == x[i] ? x[i] : -kInfinity, static_cast<int32_t>(i)};
            // best[] is a heap whose first element is the worst.
            if (count < k) {
                best[count++] = candidate;
                std::push_heap(best, best + count, Candidate::better);
            } else if (candidate.value > best[0].value) {
                std::pop_heap(best, best + k, Candidate::better);
                best[k - 1] = candidate;
                std::push_heap(best, best + k, Candidate::better);
            }
        }
    }
    std::sort(best, best + count, Candidate::better);
}

void one_row(const LogprobsArgs& args, int64_t row) {
    const int64_t n = args.vocabulary, k = args.k;
    const float* x = args.logits + row * n;
    auto* maxima = scratch<BlockMaximum>(ScratchSlot::kTile, block_count(n));
    const float log_total = log_sum_exp(x, n, block_maxima(x, n, maxima).value);
    args.logprobs[row] = x[args.tokens[row]] - log_total;
    args.ranks[row] = rank_of(x, n, args.tokens[row]);
    if (k == 0) return;
    auto* best = scratch<Candidate>(ScratchSlot::kCandidates, k);
    top_k(x, n, k, maxima, best);
    for (int64_t i = 0; i < k; i++) {
        args.top_ids[row * k + i] = best[i].id;
        args.top_logprobs[row * k + i] = best[i].value - log_total;
    }
}

}  // namespace

void top_logprobs(ThreadPool& pool, const LogprobsArgs& args) {
    pool.parallel_for(args.rows, [&](int64_t row) { one_row(args, row); });
}

}  // namespace triolet::TRIOLET_ISA
