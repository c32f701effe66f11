// Which instruction sets this process may use.
#pragma once

#include <string>
#include <vector>

namespace triolet {

// Names of the instruction sets that were built and that run here, best first; the last is
// always "portable".
const std::vector<std::string>& supported_isas();

}  // namespace triolet
