// out = x / sqrt(mean(x^2) + eps) * (weight + offset), with the addition before it fused in.
//
// Sums and products are float32; a row is read by one thread, so it does not depend on others.
#include "ops/linear.h"
#include "ops/table.h"

namespace triolet::TRIOLET_ISA {
namespace {

inline float inverse_rms(float sum_of_squares, int64_t n, float eps) {
    return 1.0f / std::sqrt(sum_of_squares / static_cast<float>(n) + eps);
}

template <class T>
inline float sum_of_squares(const T* x, int64_t n) {
    F16 sum = zero();
    for (int64_t i = 0; i < n; i += kLanes) {
        const F16 value = load_some(x + i, n - i);
        sum = fma(value, value, sum);
    }
    return reduce_add(sum);
}

template <class T>
inline F16 normed(const T* x, const T* weight, int64_t i, int64_t n, F16 inverse, F16 offset) {
    return load_some(x + i, n - i) * inverse * (load_some(weight + i, n - i) + offset);
}

// residual += x, or the norm of x; returns the sum of squares of the residual as it is stored.
template <class T>
inline float add_to_residual(const T* x, T* residual, const T* inner_weight, const RmsNormArgs& args) {
    const int64_t n = args.hidden;
    F16 inverse = zero();
    if (inner_weight != nullptr) inverse = splat(inverse_rms(sum_of_squares(x, n), n, args.eps));
    const F16 offset = splat(args.offset);
    F16 sum = zero();
    for (int64_t i = 0; i < n; i += kLanes) {
        const F16 added = inner_weight != nullptr ? normed(x, inner_weight, i, n, inverse, offset)
                                                  : load_some(x + i, n - i);
        store_some(residual + i, load_some(residual + i, n - i) + added, n - i);
        const F16 stored = load_some(residual + i, n - i);  // rounded: what the next layer sees
        sum = fma(stored, stored, sum);
    }
    return reduce_add(sum);
}

template <class T>
void rms_norm_of(ThreadPool& pool, const RmsNormArgs& args) {
    constexpr int64_t kRowsPerTile = 8;
    const int64_t n = args.hidden;
    const auto* weight = static_cast<const T*>(args.weight);
    for_row_runs(pool, args.rows, kRowsPerTile, [&](int64_t first, int64_t end) {
        for (int64_t row = first; row < end; row++) {
            const T* x = static_cast<const T*>(args.x) + row * n;
            float squares;
            if (args.residual != nullptr) {
                T* residual = static_cast<T*>(args.residual) + row * n;
                squares = add_to_residual(x, residual, static_cast<const T*>(args.inner_weight), args);
                x = residual;
            } else {
                squares = sum_of_squares(x, n);
            }
            const F16 inverse = splat(inverse_rms(squares, n, args.eps)), offset = splat(args.offset);
            T* out = static_cast<T*>(args.out) + row * n;
            for (int64_t i = 0; i < n; i += kLanes)
                store_some(out + i, normed(x, weight, i, n, inverse, offset), n - i);
        }
    });
}

}  // namespace

void rms_norm(ThreadPool& pool, const RmsNormArgs& args) {
    if (args.dtype == DType::kFloat32)
        rms_norm_of<float>(pool, args);
    else
        rms_norm_of<bf16>(pool, args);
}

}  // namespace triolet::TRIOLET_ISA
