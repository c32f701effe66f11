// Scratch memory of one thread. It grows to the largest request and lives as long as the thread,
// so that a step neither allocates nor touches fresh pages once the engine is warm.
#pragma once

#include <cstddef>
#include <cstdint>

namespace triolet {

// A buffer is identified by who uses it: the coordinator of an operation (shared with all tiles)
// and a tile (private) may be the same thread at the same time, hence separate slots.
enum class ScratchSlot : int {
    kActivations,   // coordinator: packed or quantized activations
    kScales,        // coordinator: their scales
    kPartials,      // coordinator: partial attention results
    kWorkItems,     // coordinator: list of work items
    kWorkUnits,     // coordinator: list of parts of work items
    kResult,        // tile: float32 results before the epilogue
    kTile,          // tile: staged keys and values
    kQueries,       // tile: staged queries and probabilities
    kSampler,       // tile: exponentials of one row of logits
    kCandidates,    // tile: candidates of a threshold
    kCount,
};

// 64-byte aligned memory of at least `bytes`, contents undefined; throws std::bad_alloc.
void* scratch_bytes(ScratchSlot slot, size_t bytes);

template <class T>
inline T* scratch(ScratchSlot slot, int64_t count) {
    return static_cast<T*>(scratch_bytes(slot, static_cast<size_t>(count) * sizeof(T)));
}

}  // namespace triolet
