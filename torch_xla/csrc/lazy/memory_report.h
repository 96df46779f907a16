// What is in device memory, by size and by the user's line that made it.
#pragma once

#include <string>

namespace torch_xla::lazy {

/// A line of totals, one for each of the `count` largest groups of arrays that are alike (shape and
/// line), and one for each of the `count` programs that need the most.
std::string MemoryReport(size_t count);

}  // namespace torch_xla::lazy
