#include "common/scratch.h"

#include <cstdlib>
#include <new>

namespace triolet {
namespace {

constexpr size_t kAlignment = 64;

struct ThreadScratch {
    void* data[static_cast<int>(ScratchSlot::kCount)] = {};
    size_t capacity[static_cast<int>(ScratchSlot::kCount)] = {};

    ~ThreadScratch() {
        for (void* buffer : data) std::free(buffer);
    }
};

thread_local ThreadScratch thread_scratch;

}  // namespace

void* scratch_bytes(ScratchSlot slot, size_t bytes) {
    const int index = static_cast<int>(slot);
    if (thread_scratch.capacity[index] < bytes) {
        // Growing by half again bounds the number of reallocations while batches grow.
        size_t wanted = bytes + bytes / 2;
        wanted = (wanted + kAlignment - 1) / kAlignment * kAlignment;
        void* fresh = std::aligned_alloc(kAlignment, wanted);
        if (fresh == nullptr) throw std::bad_alloc();
        std::free(thread_scratch.data[index]);
        thread_scratch.data[index] = fresh;
        thread_scratch.capacity[index] = wanted;
    }
    return thread_scratch.data[index];
}

}  // namespace triolet
