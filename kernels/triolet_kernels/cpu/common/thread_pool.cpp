#include "common/thread_pool.h"

#include <unistd.h>

#include <chrono>
#include <exception>
#include <stdexcept>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace triolet {
namespace {

using Clock = std::chrono::steady_clock;

// How long an idle worker spins before it sleeps. One operation follows the other after about
// 10 us of Python; a futex wake-up costs the caller about 5 us and the worker several tens. Longer
// spinning would take the core from the event loop, which runs between two steps.
constexpr auto kIdleSpin = std::chrono::microseconds(40);
// How long the caller spins for the last tiles of others before it sleeps.
constexpr auto kJoinSpin = std::chrono::microseconds(40);
constexpr int kPausesPerClockRead = 8;

inline void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Spins until `ready()` or until `limit` has passed; returns ready().
template <class Ready>
bool spin_until(Clock::duration limit, Ready&& ready) {
    const auto end = Clock::now() + limit;
    while (!ready()) {
        for (int i = 0; i < kPausesPerClockRead; i++) pause();
        if (Clock::now() >= end) return ready();
    }
    return true;
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads), owner_pid_(getpid()) {
    if (num_threads < 1 || num_threads > 1024)
        throw std::invalid_argument("num_threads must be in 1..1024");
    for (int i = 1; i < num_threads; i++) workers_.emplace_back([this] { worker_main(); });
}

ThreadPool::~ThreadPool() { close(); }

void ThreadPool::close() {
    const std::lock_guard<std::mutex> lock(busy_);
    if (owner_pid_ != getpid()) {
        // A forked child: the threads do not exist here, so joining would never return.
        for (std::thread& worker : workers_) worker.detach();
    } else {
        stopping_.store(true);
        epoch_.fetch_add(1);
        epoch_.notify_all();
        for (std::thread& worker : workers_) worker.join();
    }
    workers_.clear();
}

void ThreadPool::run_alone(int64_t num_tiles, TileFunction function, void* context) {
    for (int64_t tile = 0; tile < num_tiles; tile++) function(context, tile);
}

void ThreadPool::run(int64_t num_tiles, TileFunction function, void* context) {
    if (num_tiles <= 0) return;
    if (num_tiles >= (int64_t{1} << 32)) throw std::invalid_argument("too many tiles");
    const std::unique_lock<std::mutex> lock(busy_, std::try_to_lock);
    if (num_tiles == 1 || !lock.owns_lock() || workers_.empty() || owner_pid_ != getpid()) {
        run_alone(num_tiles, function, context);
        return;
    }
    function_.store(function, std::memory_order_relaxed);
    context_.store(context, std::memory_order_relaxed);
    tiles_done_.store(0, std::memory_order_relaxed);
    ticket_.store(static_cast<uint64_t>(num_tiles) << 32, std::memory_order_release);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();

    work();

    const auto total = static_cast<uint32_t>(num_tiles);
    const auto all_done = [&] { return tiles_done_.load(std::memory_order_acquire) == total; };
    if (!spin_until(kJoinSpin, all_done)) {
        for (uint32_t done; (done = tiles_done_.load(std::memory_order_acquire)) != total;)
            tiles_done_.wait(done, std::memory_order_acquire);
    }
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

// Takes tiles until none is left.
void ThreadPool::work() {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    for (;;) {
        const auto total = static_cast<uint32_t>(ticket >> 32);
        const auto tile = static_cast<uint32_t>(ticket);
        if (tile >= total) return;
        if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel,
                                           std::memory_order_acquire))
            continue;
        // The tile is ours, so the caller cannot have left run(): function and context are its.
        const TileFunction function = function_.load(std::memory_order_relaxed);
        void* const context = context_.load(std::memory_order_relaxed);
        try {
            function(context, tile);
        } catch (...) {
            const std::lock_guard<std::mutex> lock(error_mutex_);
            if (!error_) error_ = std::current_exception();
        }
        if (tiles_done_.fetch_add(1, std::memory_order_acq_rel) + 1 == total)
            tiles_done_.notify_one();
        ticket = ticket_.load(std::memory_order_acquire);
    }
}

void ThreadPool::worker_main() {
    uint32_t seen = 0;  // the value before the first operation
    for (;;) {
        const auto called = [&] { return epoch_.load(std::memory_order_acquire) != seen; };
        if (!spin_until(kIdleSpin, called)) epoch_.wait(seen, std::memory_order_acquire);
        seen = epoch_.load(std::memory_order_acquire);
        if (stopping_.load(std::memory_order_acquire)) return;
        work();
    }
}

}  // namespace triolet
