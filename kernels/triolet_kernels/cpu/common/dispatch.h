// From the name of an instruction set to its kernels.
#pragma once

#include <string>

#include "common/kernel_table.h"

namespace triolet {

// Throws std::invalid_argument if `isa` was not built or does not run here; names what does.
const KernelTable& kernel_table(const std::string& isa);

}  // namespace triolet
