// The functions of one instruction set, one per file in ops/.
#pragma once

#include "common/kernel_table.h"

#define TRIOLET_DECLARE_KERNELS(isa)                              \
    namespace triolet::isa {                                      \
    void linear(ThreadPool&, const LinearArgs&);                  \
    void linear_w8a8(ThreadPool&, const LinearArgs&);             \
    void linear_w4a8(ThreadPool&, const LinearArgs&);             \
    void embedding(ThreadPool&, const EmbeddingArgs&);            \
    void rms_norm(ThreadPool&, const RmsNormArgs&);               \
    void gated_activation(ThreadPool&, const GatedActivationArgs&); \
    void rope_and_store(ThreadPool&, const RopeStoreArgs&);       \
    void paged_attention(ThreadPool&, const AttentionArgs&);      \
    void sample(ThreadPool&, const SampleArgs&);                  \
    void top_logprobs(ThreadPool&, const LogprobsArgs&);          \
    }

#ifdef TRIOLET_ISA
TRIOLET_DECLARE_KERNELS(TRIOLET_ISA)
#endif
