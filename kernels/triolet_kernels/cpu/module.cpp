// The Python module triolet_kernels._native: kernels on raw addresses.
//
// triolet_kernels/native.py is the only caller; it checks shapes and types, keeps the tensors
// alive and passes their addresses. No torch headers, so one build serves every torch version. The
// GIL is released during every call.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "common/cpu_features.h"
#include "common/dispatch.h"
#include "common/pack.h"
#include "common/thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace triolet {
namespace {

using Address = uintptr_t;

template <class T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

// A pool of threads and the kernels of one instruction set.
class Kernels {
  public:
    Kernels(const std::string& isa, int num_threads) : table_(kernel_table(isa)), pool_(num_threads) {}

    void close() { pool_.close(); }
    int num_threads() const { return pool_.num_threads(); }

    void pack(int format, Address weight, int dtype, int64_t n, int64_t k, Address packed, Address scales,
              Address sums) {
        pack_weight(pool_, static_cast<WeightFormat>(format), at<void>(weight), static_cast<DType>(dtype), n, k,
                    at<void>(packed), at<void>(scales), at<int32_t>(sums));
    }

    void linear(int format, Address x, Address weight, Address scales, Address sums, Address bias, Address y,
                int64_t rows, int64_t n, int64_t k, int dtype, bool float_output) {
        const LinearArgs args{
            .x = at<void>(x),
            .weight = at<void>(weight),
            .weight_scales = at<void>(scales),
            .weight_sums = at<int32_t>(sums),
            .bias = at<float>(bias),
            .y = at<void>(y),
            .rows = rows,
            .n = n,
            .k = k,
            .dtype = static_cast<DType>(dtype),
            .float_output = float_output,
        };
        switch (static_cast<WeightFormat>(format)) {
            case WeightFormat::kW8A8: return table_.linear_w8a8(pool_, args);
            case WeightFormat::kW4A8: return table_.linear_w4a8(pool_, args);
            default: return table_.linear(pool_, args);
        }
    }

    void embedding(Address ids, Address table, Address scales, Address out, int64_t rows, int64_t vocabulary,
                   int64_t hidden, int dtype) {
        table_.embedding(pool_, {
                                    .ids = at<int64_t>(ids),
                                    .table = at<void>(table),
                                    .scales = at<float>(scales),
                                    .out = at<void>(out),
                                    .rows = rows,
                                    .vocabulary = vocabulary,
                                    .hidden = hidden,
                                    .dtype = static_cast<DType>(dtype),
                                });
    }

    void rms_norm(Address x, Address residual, Address inner_weight, Address weight, Address out, int64_t rows,
                  int64_t hidden, float eps, float offset, int dtype) {
        table_.rms_norm(pool_, {
                                   .x = at<void>(x),
                                   .residual = at<void>(residual),
                                   .inner_weight = at<void>(inner_weight),
                                   .weight = at<void>(weight),
                                   .out = at<void>(out),
                                   .rows = rows,
                                   .hidden = hidden,
                                   .eps = eps,
                                   .offset = offset,
                                   .dtype = static_cast<DType>(dtype),
                               });
    }

    void gated_activation(Address gate_up, Address out, int64_t rows, int64_t intermediate, int kind, int dtype) {
        table_.gated_activation(pool_, {
                                           .gate_up = at<void>(gate_up),
                                           .out = at<void>(out),
                                           .rows = rows,
                                           .intermediate = intermediate,
                                           .kind = static_cast<ActivationKind>(kind),
                                           .dtype = static_cast<DType>(dtype),
                                       });
    }

    void rope_and_store(Address qkv, Address q_out, Address keys, Address values, Address positions, Address slots,
                        Address cos, Address sin, Address q_norm, Address k_norm, int64_t rows, int64_t num_blocks,
                        int64_t max_positions, int num_heads, int num_kv_heads, int head_dim, int block_size, int rotary_dim, float eps, float offset,
                        int dtype) {
        table_.rope_and_store(pool_, {
                                         .qkv = at<void>(qkv),
                                         .q_out = at<void>(q_out),
                                         .keys = at<void>(keys),
                                         .values = at<void>(values),
                                         .positions = at<int64_t>(positions),
                                         .slots = at<int64_t>(slots),
                                         .cos = at<float>(cos),
                                         .sin = at<float>(sin),
                                         .q_norm = at<void>(q_norm),
                                         .k_norm = at<void>(k_norm),
                                         .rows = rows,
                                         .num_blocks = num_blocks,
                                         .max_positions = max_positions,
                                         .num_heads = num_heads,
                                         .num_kv_heads = num_kv_heads,
                                         .head_dim = head_dim,
                                         .block_size = block_size,
                                         .rotary_dim = rotary_dim,
                                         .eps = eps,
                                         .offset = offset,
                                         .dtype = static_cast<DType>(dtype),
                                     });
    }

    void paged_attention(Address q, Address out, Address keys, Address values, Address positions,
                         Address query_starts, Address block_table, Address sinks, int64_t sequences,
                         int64_t block_table_stride, int64_t num_blocks, int num_heads, int num_kv_heads, int head_dim, int block_size,
                         int64_t window, float scale, float softcap, int dtype) {
        table_.paged_attention(pool_, {
                                          .q = at<void>(q),
                                          .out = at<void>(out),
                                          .keys = at<void>(keys),
                                          .values = at<void>(values),
                                          .positions = at<int64_t>(positions),
                                          .query_starts = at<int32_t>(query_starts),
                                          .block_table = at<int32_t>(block_table),
                                          .sinks = at<float>(sinks),
                                          .sequences = sequences,
                                          .block_table_stride = block_table_stride,
                                          .num_blocks = num_blocks,
                                          .num_heads = num_heads,
                                          .num_kv_heads = num_kv_heads,
                                          .head_dim = head_dim,
                                          .block_size = block_size,
                                          .window = window,
                                          .scale = scale,
                                          .softcap = softcap,
                                          .dtype = static_cast<DType>(dtype),
                                      });
    }

    void sample(Address logits, Address temperature, Address top_k, Address top_p, Address min_p, Address uniform,
                Address tokens, int64_t rows, int64_t vocabulary) {
        table_.sample(pool_, {
                                 .logits = at<float>(logits),
                                 .temperature = at<float>(temperature),
                                 .top_k = at<int32_t>(top_k),
                                 .top_p = at<float>(top_p),
                                 .min_p = at<float>(min_p),
                                 .uniform = at<double>(uniform),
                                 .tokens = at<int64_t>(tokens),
                                 .rows = rows,
                                 .vocabulary = vocabulary,
                             });
    }

    void top_logprobs(Address logits, Address tokens, Address logprobs, Address ranks, Address top_ids,
                      Address top_logprobs, int64_t rows, int64_t vocabulary, int64_t k) {
        table_.top_logprobs(pool_, {
                                       .logits = at<float>(logits),
                                       .tokens = at<int64_t>(tokens),
                                       .logprobs = at<float>(logprobs),
                                       .ranks = at<int64_t>(ranks),
                                       .top_ids = at<int64_t>(top_ids),
                                       .top_logprobs = at<float>(top_logprobs),
                                       .rows = rows,
                                       .vocabulary = vocabulary,
                                       .k = k,
                                   });
    }

    // Hands out `tiles` empty tiles, `times` times over: what the pool itself costs.
    void empty_operations(int64_t tiles, int64_t times) {
        for (int64_t i = 0; i < times; i++) pool_.parallel_for(tiles, [](int64_t) { asm volatile(""); });
    }

  private:
    const KernelTable& table_;
    ThreadPool pool_;
};

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Native CPU kernels on raw addresses; use triolet_kernels.native.";
    m.def("supported_isas", &supported_isas, "Instruction sets that were built and run here, best first.");
    m.def("packed_bytes", [](int format, int64_t n, int64_t k) { return packed_bytes(static_cast<WeightFormat>(format), n, k); },
          "code"_a, "n"_a, "k"_a);
    m.def("scale_bytes", [](int format, int64_t n, int64_t k) { return scale_bytes(static_cast<WeightFormat>(format), n, k); },
          "code"_a, "n"_a, "k"_a);
    m.def("advise_huge_pages", [](Address memory, int64_t bytes) { advise_huge_pages(at<void>(memory), bytes); },
          "memory"_a, "num_bytes"_a);
    using Unlocked = nb::call_guard<nb::gil_scoped_release>;
    nb::class_<Kernels>(m, "Kernels")
        .def(nb::init<const std::string&, int>(), "isa"_a, "num_threads"_a)
        .def_prop_ro("num_threads", &Kernels::num_threads)
        .def("close", &Kernels::close, Unlocked())
        .def("pack", &Kernels::pack, Unlocked())
        .def("linear", &Kernels::linear, Unlocked())
        .def("embedding", &Kernels::embedding, Unlocked())
        .def("rms_norm", &Kernels::rms_norm, Unlocked())
        .def("gated_activation", &Kernels::gated_activation, Unlocked())
        .def("rope_and_store", &Kernels::rope_and_store, Unlocked())
        .def("paged_attention", &Kernels::paged_attention, Unlocked())
        .def("sample", &Kernels::sample, Unlocked())
        .def("top_logprobs", &Kernels::top_logprobs, Unlocked())
        .def("empty_operations", &Kernels::empty_operations, Unlocked());
}

}  // namespace triolet
