// What this machine can do at most, to hold kernels against: bytes per second from memory, and
// products per second of each instruction. Prints one JSON object. Argument: number of threads.
//
// c++ -std=c++20 -O3 -march=native -pthread ceilings.cpp -o ceilings
#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

constexpr int kRounds = 15;

double cpu_seconds() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Seconds of CPU that the slowest thread takes for `body(thread)` when all begin at once: the
// median of the rounds. CPU time, so that a thread that is not let onto its core is not counted.
template <class Body>
double seconds(int threads, Body body) {
    std::vector<double> rounds;
    for (int round = 0; round < kRounds; round++) {
        std::atomic<int> ready{0};
        std::vector<double> times(static_cast<size_t>(threads));
        const auto run = [&](int thread) {
            ready++;
            while (ready < threads) {
            }
            const double start = cpu_seconds();
            body(thread);
            times[static_cast<size_t>(thread)] = cpu_seconds() - start;
        };
        std::vector<std::thread> others;
        for (int thread = 1; thread < threads; thread++) others.emplace_back(run, thread);
        run(0);
        for (std::thread& other : others) other.join();
        rounds.push_back(*std::max_element(times.begin(), times.end()));
    }
    std::sort(rounds.begin(), rounds.end());
    return rounds[rounds.size() / 2];
}

double read_bandwidth(int threads) {
    constexpr size_t kBytes = size_t{96} << 20;  // per thread, beyond a shared cache's share
    auto* memory = static_cast<char*>(std::aligned_alloc(size_t{2} << 20, kBytes * threads));
#if defined(__linux__)
    madvise(memory, kBytes * threads, MADV_HUGEPAGE);
#endif
    for (size_t i = 0; i < kBytes * threads; i += 64) memory[i] = static_cast<char>(i >> 6);
    const double time = seconds(threads, [&](int thread) {
        const char* begin = memory + kBytes * thread;
        uint64_t sum[8] = {};
        for (size_t i = 0; i < kBytes; i += 64)
            for (int j = 0; j < 8; j++) sum[j] += *reinterpret_cast<const uint64_t*>(begin + i + 8 * j);
        for (uint64_t part : sum) asm volatile("" ::"r"(part));
    });
    std::free(memory);
    return static_cast<double>(kBytes) * threads / time;
}

// Products and sums per second when `step()` does `operations` of them; 200,000 steps a round.
template <class Step>
double peak(int threads, double operations, Step step) {
    constexpr int kSteps = 200000;
    const double time = seconds(threads, [&](int thread) { step(thread, kSteps); });
    return operations * kSteps * threads / time;
}

#if defined(__AVX512F__)
#define KEEP(x) asm volatile("" : "+v"(x))

double fp32_peak(int threads) {
    return peak(threads, 12 * 32, [](int, int steps) {
        __m512 sum[12];
        for (auto& lane : sum) lane = _mm512_set1_ps(0.1f);
        const __m512 a = _mm512_set1_ps(1.0001f), b = _mm512_set1_ps(0.9999f);
        for (int i = 0; i < steps; i++)
#pragma GCC unroll 12
            for (auto& lane : sum) {
                lane = _mm512_fmadd_ps(lane, a, b);
                KEEP(lane);
            }
    });
}
#endif

#if defined(__AVX512BF16__)
double bf16_peak(int threads) {
    return peak(threads, 12 * 64, [](int, int steps) {
        __m512 sum[12];
        for (auto& lane : sum) lane = _mm512_set1_ps(0.1f);
        const __m512bh a = (__m512bh)_mm512_set1_epi32(0x3f803f80);
        for (int i = 0; i < steps; i++)
#pragma GCC unroll 12
            for (auto& lane : sum) {
                lane = _mm512_dpbf16_ps(lane, a, a);
                KEEP(lane);
            }
    });
}
#endif

#if defined(__AVX512VNNI__)
double int8_peak(int threads) {
    return peak(threads, 12 * 128, [](int, int steps) {
        __m512i sum[12];
        for (auto& lane : sum) lane = _mm512_set1_epi32(1);
        const __m512i a = _mm512_set1_epi32(0x01010101);
        for (int i = 0; i < steps; i++)
#pragma GCC unroll 12
            for (auto& lane : sum) {
                lane = _mm512_dpbusd_epi32(lane, a, a);
                KEEP(lane);
            }
    });
}
#endif

#if defined(__AMX_BF16__) && defined(__AMX_INT8__)
constexpr double kTileProducts = 2.0 * 16 * 16;

// Four products of tiles that hold ordinary numbers: zeros would draw less power, and so run faster.
template <bool kBytes>
double amx_peak(int threads) {
    struct alignas(64) Configuration {
        uint8_t palette = 1, start = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {};
        uint8_t rows[16] = {};
    };
    const double per_step = 4 * kTileProducts * (kBytes ? 64 : 32);
    return peak(threads, per_step, [](int, int steps) {
        alignas(64) uint16_t numbers[2][512];
        uint32_t state = 1;
        for (auto& tile : numbers)
            for (uint16_t& number : tile) {
                state = state * 1664525u + 1013904223u;
                number = static_cast<uint16_t>(0x3c00u | (state >> 16 & 0x83ffu));
            }
        Configuration configuration;
        for (int i = 0; i < 8; i++) {
            configuration.row_bytes[i] = 64;
            configuration.rows[i] = 16;
        }
        asm volatile("ldtilecfg %0\n tileloadd (%1,%3,1), %%tmm4\n tileloadd (%2,%3,1), %%tmm5" ::"m"(configuration),
                     "r"(numbers[0]), "r"(numbers[1]), "r"(64L)
                     : "memory");
        for (int i = 0; i < steps; i++) {
            if (kBytes)
                asm volatile(
                    "tdpbusd %tmm5,%tmm4,%tmm0\n tdpbusd %tmm5,%tmm4,%tmm1\n"
                    "tdpbusd %tmm5,%tmm4,%tmm2\n tdpbusd %tmm5,%tmm4,%tmm3");
            else
                asm volatile(
                    "tdpbf16ps %tmm5,%tmm4,%tmm0\n tdpbf16ps %tmm5,%tmm4,%tmm1\n"
                    "tdpbf16ps %tmm5,%tmm4,%tmm2\n tdpbf16ps %tmm5,%tmm4,%tmm3");
        }
        asm volatile("tilerelease");
    });
}
#endif

}  // namespace

int main(int argc, char** argv) {
    const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
    std::printf("{\"threads\": %d, \"read_gb_s\": %.2f", threads, read_bandwidth(threads) / 1e9);
#if defined(__AVX512F__)
    std::printf(", \"fp32_gflop_s\": %.0f", fp32_peak(threads) / 1e9);
#endif
#if defined(__AVX512BF16__)
    std::printf(", \"bf16_gflop_s\": %.0f", bf16_peak(threads) / 1e9);
#endif
#if defined(__AVX512VNNI__)
    std::printf(", \"int8_gop_s\": %.0f", int8_peak(threads) / 1e9);
#endif
#if defined(__AMX_BF16__) && defined(__AMX_INT8__)
    if (syscall(SYS_arch_prctl, 0x1023, 18) == 0) {  // ARCH_REQ_XCOMP_PERM, the tile registers
        std::printf(", \"amx_bf16_gflop_s\": %.0f", amx_peak<false>(threads) / 1e9);
        std::printf(", \"amx_int8_gop_s\": %.0f", amx_peak<true>(threads) / 1e9);
    }
#endif
    std::printf("}\n");
    return 0;
}
