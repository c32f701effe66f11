#include "common/checks.h"

#include <stdexcept>
#include <string>

namespace triolet {

void fail_index(const char* what, int64_t value, int64_t limit) {
    throw std::out_of_range(std::string(what) + " " + std::to_string(value) + " is not in 0.." +
                            std::to_string(limit - 1));
}

}  // namespace triolet
