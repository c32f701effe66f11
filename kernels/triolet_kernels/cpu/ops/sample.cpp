// One token per row of logits, exactly, without sorting the vocabulary.
//
// temperature, then top_k, then top_p over the renormalised rest, then min_p; then the inverse
// CDF of the given uniform number over the kept tokens in the order of their ids. Ties at a
// threshold are kept in the order of ids. Two ways:
// - Small top_k: at least k blocks of 256 have a maximum above the k-th largest block maximum, so
//   the k best tokens are all at or above it. Only those few candidates are sorted.
// - Otherwise: a histogram of the exponentials over the bits of the float (16 bins per power of
//   two) finds the bin in which the threshold lies, and only that bin is sorted.
#include <algorithm>

#include "ops/linear.h"
#include "ops/logits_scan.h"
#include "ops/table.h"

namespace triolet::TRIOLET_ISA {
namespace {

struct Parameters {
    float temperature;
    int64_t top_k;  // 0 keeps all
    float top_p, min_p;
    double uniform;
};

// What is kept: values above `value`, and those equal to it with an id up to `last_id`.
struct Threshold {
    float value = 0.0f;
    int64_t last_id = std::numeric_limits<int64_t>::max();

    bool keeps(float x, int64_t id) const { return x > value || (x == value && id <= last_id); }
};

// ---- few candidates -------------------------------------------------------------------------

class CandidateSampler {
  public:
    CandidateSampler(const float* x, int64_t n, const BlockMaximum* maxima, float largest, const Parameters& p)
        : x_(x), n_(n), maxima_(maxima), largest_(largest), p_(p) {}

    // -1 if nothing has a probability.
    int64_t draw() {
        collect();
        keep_top_k();
        const int64_t kept = keep_by_probability();
        std::sort(candidates_, candidates_ + kept, [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
        double total = 0.0;
        for (int64_t i = 0; i < kept; i++) total += candidates_[i].value;
        const double target = p_.uniform * total;
        int64_t drawn = -1;
        double sum = 0.0;
        for (int64_t i = 0; i < kept; i++) {
            if (!(candidates_[i].value > 0.0f)) continue;
            drawn = candidates_[i].id;
            sum += candidates_[i].value;
            if (sum > target) break;
        }
        return drawn;
    }

  private:
    // Every token whose logit is at least the k-th largest block maximum.
    void collect() {
        const int64_t blocks = block_count(n_);
        candidates_ = scratch<Candidate>(ScratchSlot::kCandidates, n_ + blocks);
        auto* sorted = reinterpret_cast<BlockMaximum*>(candidates_ + n_);
        for (int64_t i = 0; i < blocks; i++) sorted[i] = maxima_[i];
        std::nth_element(sorted, sorted + p_.top_k - 1, sorted + blocks,
                         [](BlockMaximum a, BlockMaximum b) { return a.value > b.value; });
        const float limit = sorted[p_.top_k - 1].value;
        for_each_at_least(x_, n_, limit, maxima_, [&](int64_t id) {
            candidates_[count_++] = {x_[id], static_cast<int32_t>(id)};
        });
    }

    void keep_top_k() {
        if (count_ > p_.top_k) std::nth_element(candidates_, candidates_ + p_.top_k, candidates_ + count_, Candidate::better);
        count_ = min64(count_, p_.top_k);
        std::sort(candidates_, candidates_ + count_, Candidate::better);
        const float scale = 1.0f / p_.temperature;
        for (int64_t i = 0; i < count_; i += kLanes) {
            float lanes[kLanes];
            for (int64_t j = 0; j < kLanes; j++) lanes[j] = i + j < count_ ? candidates_[i + j].value : -kInfinity;
            store(lanes, exp((load(lanes) - splat(largest_)) * splat(scale)));
            for (int64_t j = 0; j < min64(kLanes, count_ - i); j++) candidates_[i + j].value = lanes[j];
        }
    }

    // How many of the sorted exponentials top_p and min_p keep.
    int64_t keep_by_probability() const {
        int64_t kept = count_;
        if (p_.top_p < 1.0f) {
            double total = 0.0;
            for (int64_t i = 0; i < count_; i++) total += candidates_[i].value;
            const double target = static_cast<double>(p_.top_p) * total;
            double sum = 0.0;
            for (kept = 0; kept < count_;) {
                sum += candidates_[kept++].value;
                if (sum >= target) break;
            }
        }
        while (kept > 1 && candidates_[kept - 1].value < p_.min_p) kept--;
        return kept;
    }

    const float* x_;
    int64_t n_;
    const BlockMaximum* maxima_;
    float largest_;
    const Parameters& p_;
    Candidate* candidates_ = nullptr;
    int64_t count_ = 0;
};

// ---- the whole vocabulary -------------------------------------------------------------------

constexpr int kBins = 1024;  // 64 powers of two, 16 bins each; the last takes all that is smaller
constexpr int kBinShift = 19;
constexpr int kFirstBin = (127 << 4) + 15;

inline int bin_of(float e) {
    uint32_t bits;
    __builtin_memcpy(&bits, &e, sizeof bits);
    const int bin = kFirstBin - static_cast<int>(bits >> kBinShift);
    return bin < kBins ? bin : kBins - 1;
}

class VocabularySampler {
  public:
    VocabularySampler(const float* x, int64_t n, const BlockMaximum* maxima, float largest, const Parameters& p)
        : n_(n), blocks_(block_count(n)), p_(p) {
        e_ = scratch<float>(ScratchSlot::kSampler, round_up(n, kLanes) + 2 * blocks_);
        sums_ = e_ + round_up(n, kLanes);
        maxima_ = reinterpret_cast<BlockMaximum*>(sums_ + blocks_);
        exponentiate(x, maxima, largest);
    }

    int64_t draw() {
        Threshold kept;
        if (p_.top_k > 0 && p_.top_k < n_) {
            fill_histogram(0.0f);
            kept = refine(static_cast<double>(p_.top_k), /*by_count=*/true, kept, 0.0f);
        }
        if (p_.top_p < 1.0f) {
            const double total = kept_total(kept);
            // What lies below the cut weighs less than half of what top_p takes away.
            const auto cut = static_cast<float>(std::min(0.25, (1.0 - static_cast<double>(p_.top_p)) * total * 0.5 /
                                                                   static_cast<double>(n_)));
            fill_histogram(cut);
            kept = refine(static_cast<double>(p_.top_p) * total, /*by_count=*/false, kept, cut);
        }
        if (p_.min_p > kept.value) kept = {std::min(p_.min_p, 1.0f), std::numeric_limits<int64_t>::max()};
        return inverse_cdf(kept);
    }

  private:
    void exponentiate(const float* x, const BlockMaximum* maxima, float largest) {
        const F16 shift = splat(largest), scale = splat(1.0f / p_.temperature);
        for (int64_t block = 0; block < blocks_; block++) {
            const int64_t begin = block * kBlockLogits, end = min64(begin + kBlockLogits, n_);
            F16 sum = zero();
            for (int64_t i = begin; i < end; i += kLanes) {
                const F16 e = exp((load_logits(x, i, n_) - shift) * scale);
                store(e_ + i, e);
                sum = sum + e;
            }
            sums_[block] = reduce_add(sum);
            float lanes[kLanes];
            store(lanes, exp((splat(maxima[block].value) - shift) * scale));
            maxima_[block].value = lanes[0];
        }
    }

    void fill_histogram(float cut) {
        for (int bin = 0; bin < kBins; bin++) mass_[bin] = count_[bin] = 0.0;
        for_each_at_least(e_, n_, std::max(cut, std::numeric_limits<float>::min()), maxima_, [&](int64_t id) {
            const int bin = bin_of(e_[id]);
            mass_[bin] += static_cast<double>(e_[id]);
            count_[bin] += 1.0;
        });
    }

    // The smallest set of best tokens, within `before`, whose count or mass reaches `target`.
    Threshold refine(double target, bool by_count, const Threshold& before, float cut) {
        const double* weight = by_count ? count_ : mass_;
        double sum = 0.0;
        int bin = 0;
        // Empty bins are passed over even if nothing is asked for: the best token is always kept.
        while (bin < kBins && (weight[bin] == 0.0 || sum + weight[bin] < target)) sum += weight[bin++];
        if (bin == kBins) return before;
        auto* candidates = scratch<Candidate>(ScratchSlot::kCandidates, n_);
        int64_t count = 0;
        for_each_at_least(e_, n_, std::max(cut, lower_edge(bin)), maxima_, [&](int64_t id) {
            if (bin_of(e_[id]) == bin) candidates[count++] = {e_[id], static_cast<int32_t>(id)};
        });
        std::sort(candidates, candidates + count, Candidate::better);
        Threshold kept = before;
        for (int64_t i = 0; i < count; i++) {
            if (!before.keeps(candidates[i].value, candidates[i].id)) return before;
            kept = {candidates[i].value, candidates[i].id};
            sum += by_count ? 1.0 : static_cast<double>(candidates[i].value);
            if (sum >= target) break;
        }
        return kept;
    }

    static float lower_edge(int bin) {
        if (bin == kBins - 1) return std::numeric_limits<float>::min();
        const uint32_t bits = static_cast<uint32_t>(kFirstBin - bin) << kBinShift;
        float edge;
        __builtin_memcpy(&edge, &bits, sizeof edge);
        return edge;
    }

    // Mass of the kept tokens of a block.
    float kept_sum(int64_t block, const Threshold& kept) const {
        if (!(maxima_[block].value >= kept.value)) return 0.0f;
        if (kept.value == 0.0f) return sums_[block];
        const int64_t begin = block * kBlockLogits, end = min64(begin + kBlockLogits, n_);
        F16 sum = zero();
        const F16 limit = splat(kept.value);
        for (int64_t i = begin; i < end; i += kLanes) {
            const F16 e = load(e_ + i);  // 0 beyond the row
            uint32_t mask = mask_gt(e, limit);
            if (i + kLanes - 1 <= kept.last_id)
                mask = mask_ge(e, limit);
            else if (i <= kept.last_id)
                mask |= mask_eq(e, limit) & ((2u << (kept.last_id - i)) - 1u);
            sum = sum + keep(mask, e);
        }
        return reduce_add(sum);
    }

    double kept_total(const Threshold& kept) const {
        double total = 0.0;
        for (int64_t block = 0; block < blocks_; block++) total += static_cast<double>(kept_sum(block, kept));
        return total;
    }

    int64_t inverse_cdf(const Threshold& kept) const {
        const double target = p_.uniform * kept_total(kept);
        double sum = 0.0;
        int64_t drawn = -1;
        for (int64_t block = 0; block < blocks_; block++) {
            const auto mass = static_cast<double>(kept_sum(block, kept));
            if (mass == 0.0) continue;
            const int64_t begin = block * kBlockLogits, end = min64(begin + kBlockLogits, n_);
            const bool here = sum + mass > target;
            double within = sum;
            for (int64_t i = begin; i < end; i++) {
                if (!(e_[i] > 0.0f) || !kept.keeps(e_[i], i)) continue;
                drawn = i;
                if (!here) continue;
                within += static_cast<double>(e_[i]);
                if (within > target) return drawn;
            }
            sum += mass;
        }
        return drawn;  // rounding: the sums end just below the target
    }

    int64_t n_, blocks_;
    const Parameters& p_;
    float* e_;              // exp((x - max) / temperature), [n padded to 16]
    float* sums_;           // per block
    BlockMaximum* maxima_;  // per block, of e
    double mass_[kBins], count_[kBins];
};

int64_t sample_row(const float* x, int64_t n, const Parameters& p) {
    auto* maxima = scratch<BlockMaximum>(ScratchSlot::kTile, block_count(n));
    const auto [largest, has_nan] = block_maxima(x, n, maxima);
    if (!(p.temperature > 0.0f)) return first_equal(x, n, largest, maxima);
    if (has_nan || largest == -kInfinity || largest == kInfinity) return -1;
    if (p.top_k > 0 && p.top_k <= block_count(n)) return CandidateSampler(x, n, maxima, largest, p).draw();
    return VocabularySampler(x, n, maxima, largest, p).draw();
}

}  // namespace

void sample(ThreadPool& pool, const SampleArgs& args) {
    pool.parallel_for(args.rows, [&](int64_t row) {
        Parameters p{0.0f, 0, 1.0f, 0.0f, 0.0};
        if (args.temperature != nullptr)
            p = {args.temperature[row], args.top_k[row], args.top_p[row], args.min_p[row], args.uniform[row]};
        args.tokens[row] = sample_row(args.logits + row * args.vocabulary, args.vocabulary, p);
    });
}

}  // namespace triolet::TRIOLET_ISA
