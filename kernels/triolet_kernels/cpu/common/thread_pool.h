// A pool of compute threads that hands out the tiles of one operation at a time.
//
// Rules:
// - The calling thread works too: a pool of n threads owns n - 1 workers.
// - Tiles are handed out one by one. When another process takes a core, the other threads do the
//   tiles that its worker did not take; a static partition would wait for that worker instead.
// - Which thread computes a tile never changes the result: a tile depends on its index only.
// - A caller that finds the pool busy (another engine in the same process) computes alone rather
//   than waiting for it.
// - After fork() the child has no workers; the pool notices and computes alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace triolet {

class ThreadPool {
  public:
    // Starts `num_threads` - 1 workers. Throws std::invalid_argument below 1 or above 1024.
    explicit ThreadPool(int num_threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    // Joins the workers; the pool then computes in the calling thread alone. Idempotent.
    void close();

    int num_threads() const { return num_threads_; }

    // Calls body(tile) for every tile in [0, num_tiles); returns when all have ended.
    // An exception of a tile is rethrown here after the others have ended.
    template <class Body>
    void parallel_for(int64_t num_tiles, Body&& body) {
        using Plain = std::remove_reference_t<Body>;
        run(num_tiles, [](void* context, int64_t tile) { (*static_cast<Plain*>(context))(tile); },
            const_cast<void*>(static_cast<const void*>(&body)));
    }

  private:
    using TileFunction = void (*)(void* context, int64_t tile);

    void run(int64_t num_tiles, TileFunction function, void* context);
    void run_alone(int64_t num_tiles, TileFunction function, void* context);
    void work();
    void worker_main();

    int num_threads_;
    std::vector<std::thread> workers_;
    int64_t owner_pid_;
    std::mutex busy_;  // held by the caller whose operation is running

    // (number of tiles << 32 | next tile): one compare-and-swap both checks that a tile is left
    // and takes it, so a worker that wakes late can only take a tile that is really there.
    alignas(64) std::atomic<uint64_t> ticket_{0};
    // Written by the caller before it publishes a ticket, read by who has taken a tile of it.
    std::atomic<TileFunction> function_{nullptr};
    std::atomic<void*> context_{nullptr};
    alignas(64) std::atomic<uint32_t> tiles_done_{0};
    alignas(64) std::atomic<uint32_t> epoch_{0};  // counts operations; idle workers wait on it
    std::atomic<bool> stopping_{false};
    std::mutex error_mutex_;
    std::exception_ptr error_;
};

}  // namespace triolet
