#include "common/cpu_features.h"

#if defined(TRIOLET_X86)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace triolet {
namespace {

#if defined(TRIOLET_X86)

// Linux gives a process the AMX tile registers only on request (their state is 8 KiB per thread);
// threads started later inherit the permission. See Documentation/arch/x86/xstate.rst.
bool request_amx_tiles() {
#if defined(__linux__)
    constexpr long kArchReqXcompPerm = 0x1023;
    constexpr long kXfeatureXtiledata = 18;
    return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
#else
    return false;
#endif
}

// CPUID leaf 7: __builtin_cpu_supports knows the AMX names only from GCC 13 on.
bool cpu_has_amx() {
    unsigned eax = 7, ebx = 0, ecx = 0, edx = 0;
    asm volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
    constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAmxInt8 = 1u << 25;
    constexpr unsigned kAll = kAmxBf16 | kAmxTile | kAmxInt8;
    return (edx & kAll) == kAll;
}

std::vector<std::string> detect() {
    __builtin_cpu_init();
    std::vector<std::string> found;
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl");
    const bool avx512bf16 = avx512 && __builtin_cpu_supports("avx512bf16") &&
                            __builtin_cpu_supports("avx512vnni");
    if (avx512bf16 && cpu_has_amx() && request_amx_tiles()) found.emplace_back("amx");
    if (avx512bf16) found.emplace_back("avx512bf16");
    if (avx512) found.emplace_back("avx512");
    if (avx2) found.emplace_back("avx2");
    found.emplace_back("portable");
    return found;
}

#else

std::vector<std::string> detect() { return {"portable"}; }

#endif

}  // namespace

const std::vector<std::string>& supported_isas() {
    static const std::vector<std::string> isas = detect();
    return isas;
}

}  // namespace triolet
