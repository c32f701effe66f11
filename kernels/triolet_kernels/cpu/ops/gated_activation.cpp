// out = act(gate) * up, [gate, up] being the halves of a row; in float32, rounded once.
#include "ops/linear.h"
#include "ops/table.h"

namespace triolet::TRIOLET_ISA {
namespace {

TRIOLET_INLINE F16 sigmoid(F16 x) { return reciprocal(splat(1.0f) + exp(zero() - x)); }

TRIOLET_INLINE F16 silu(F16 x) { return x * sigmoid(x); }

// 0.5 x (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
TRIOLET_INLINE F16 gelu_tanh(F16 x) {
    const F16 two_u = splat(1.5957691216f) * x * fma(splat(0.044715f) * x, x, splat(1.0f));
    return x * sigmoid(two_u);
}

// erf lane by lane: the exact GELU is rare in models, and libm is accurate.
inline F16 gelu(F16 x) {
    float lanes[kLanes];
    store(lanes, x);
    for (float& lane : lanes) lane = 0.5f * lane * (1.0f + erff(lane * 0.70710678f));
    return load(lanes);
}

template <ActivationKind kKind>
TRIOLET_INLINE F16 activate(F16 x) {
    if constexpr (kKind == ActivationKind::kSilu) return silu(x);
    if constexpr (kKind == ActivationKind::kGeluTanh) return gelu_tanh(x);
    if constexpr (kKind == ActivationKind::kGelu) return gelu(x);
}

template <class T, ActivationKind kKind>
void gated_activation_of(ThreadPool& pool, const GatedActivationArgs& args) {
    constexpr int64_t kRowsPerTile = 4;
    const int64_t n = args.intermediate;
    for_row_runs(pool, args.rows, kRowsPerTile, [&](int64_t first, int64_t end) {
        for (int64_t row = first; row < end; row++) {
            const T* gate = static_cast<const T*>(args.gate_up) + row * 2 * n;
            const T* up = gate + n;
            T* out = static_cast<T*>(args.out) + row * n;
            for (int64_t i = 0; i < n; i += kLanes)
                store_some(out + i, activate<kKind>(load_some(gate + i, n - i)) * load_some(up + i, n - i), n - i);
        }
    });
}

template <class T>
void dispatch(ThreadPool& pool, const GatedActivationArgs& args) {
    switch (args.kind) {
        case ActivationKind::kSilu: return gated_activation_of<T, ActivationKind::kSilu>(pool, args);
        case ActivationKind::kGeluTanh: return gated_activation_of<T, ActivationKind::kGeluTanh>(pool, args);
        case ActivationKind::kGelu: return gated_activation_of<T, ActivationKind::kGelu>(pool, args);
    }
}

}  // namespace

void gated_activation(ThreadPool& pool, const GatedActivationArgs& args) {
    if (args.dtype == DType::kFloat32)
        dispatch<float>(pool, args);
    else
        dispatch<bf16>(pool, args);
}

}  // namespace triolet::TRIOLET_ISA
