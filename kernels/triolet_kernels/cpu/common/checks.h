// Indices that come from outside are checked before they become addresses.
#pragma once

#include <cstdint>

namespace triolet {

// Throws std::out_of_range: "<what> <value> is not in 0..<limit - 1>".
[[noreturn]] void fail_index(const char* what, int64_t value, int64_t limit);

inline void check_index(const char* what, int64_t value, int64_t limit) {
    if (value < 0 || value >= limit) fail_index(what, value, limit);
}

inline void check_indices(const char* what, const int64_t* values, int64_t count, int64_t limit) {
    for (int64_t i = 0; i < count; i++) check_index(what, values[i], limit);
}

}  // namespace triolet
