#include "common/dispatch.h"

#include <algorithm>
#include <stdexcept>

#include "common/cpu_features.h"
#include "ops/table.h"

TRIOLET_DECLARE_KERNELS(portable)
#if defined(TRIOLET_X86)
TRIOLET_DECLARE_KERNELS(avx2)
TRIOLET_DECLARE_KERNELS(avx512)
TRIOLET_DECLARE_KERNELS(avx512bf16)
TRIOLET_DECLARE_KERNELS(amx)
#endif

namespace triolet {
namespace {

constexpr KernelTable kPortable{
    .linear = portable::linear,
    .linear_w8a8 = portable::linear_w8a8,
    .linear_w4a8 = portable::linear_w4a8,
    .embedding = portable::embedding,
    .rms_norm = portable::rms_norm,
    .gated_activation = portable::gated_activation,
    .rope_and_store = portable::rope_and_store,
    .paged_attention = portable::paged_attention,
    .sample = portable::sample,
    .top_logprobs = portable::top_logprobs,
};

#if defined(TRIOLET_X86)
constexpr KernelTable kAvx2{
    .linear = avx2::linear,
    .linear_w8a8 = avx2::linear_w8a8,
    .linear_w4a8 = avx2::linear_w4a8,
    .embedding = avx2::embedding,
    .rms_norm = avx2::rms_norm,
    .gated_activation = avx2::gated_activation,
    .rope_and_store = avx2::rope_and_store,
    .paged_attention = avx2::paged_attention,
    .sample = avx2::sample,
    .top_logprobs = avx2::top_logprobs,
};

constexpr KernelTable kAvx512{
    .linear = avx512::linear,
    .linear_w8a8 = avx512::linear_w8a8,
    .linear_w4a8 = avx512::linear_w4a8,
    .embedding = avx512::embedding,
    .rms_norm = avx512::rms_norm,
    .gated_activation = avx512::gated_activation,
    .rope_and_store = avx512::rope_and_store,
    .paged_attention = avx512::paged_attention,
    .sample = avx512::sample,
    .top_logprobs = avx512::top_logprobs,
};

// The newer sets only bring dot products: matrix products and attention are their own.
constexpr KernelTable with_dot_products(KernelTable table) {
    table.linear = avx512bf16::linear;
    table.linear_w8a8 = avx512bf16::linear_w8a8;
    table.linear_w4a8 = avx512bf16::linear_w4a8;
    table.paged_attention = avx512bf16::paged_attention;
    return table;
}

// The tiles of AMX give nothing to w4a8, whose sums end every 32 values.
constexpr KernelTable with_tiles(KernelTable table) {
    table.linear = amx::linear;
    table.linear_w8a8 = amx::linear_w8a8;
    table.paged_attention = amx::paged_attention;
    return table;
}

constexpr KernelTable kAvx512Bf16 = with_dot_products(kAvx512);
constexpr KernelTable kAmx = with_tiles(kAvx512Bf16);
#endif

}  // namespace

const KernelTable& kernel_table(const std::string& isa) {
    const auto& supported = supported_isas();
    if (std::find(supported.begin(), supported.end(), isa) == supported.end()) {
        std::string names;
        for (const std::string& name : supported) names += (names.empty() ? "" : ", ") + name;
        throw std::invalid_argument("isa '" + isa + "' does not run here; one of " + names + " does");
    }
#if defined(TRIOLET_X86)
    if (isa == "amx") return kAmx;
    if (isa == "avx512bf16") return kAvx512Bf16;
    if (isa == "avx512") return kAvx512;
    if (isa == "avx2") return kAvx2;
#endif
    return kPortable;
}

}  // namespace triolet
