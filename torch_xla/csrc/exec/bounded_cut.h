// One program for many sizes: a cut whose structure was seen with other sizes becomes a cut whose
// arrays have the sizes of their buckets (exec/bounded_graph.h). The host pads inputs before the
// program, and takes the elements that count out of its results.
#pragma once

#include <optional>
#include <string>

#include "exec/split.h"

namespace torch_xla::lazy {

/// Returns nothing if sizes are not arguments (XLA_DYNAMIC_SIZES), if the structure is new, if no
/// input's size differs from the first one's, or if an operation has no rule. Counters
/// DynamicSizes and DynamicSizesRefused.
std::optional<Bulk> BoundCut(const Cut& cut);

/// Notes that the program of a bounded cut could not be made: `cut` and others of its structure are
/// not bounded again.
void RefuseBounds(const Cut& cut, const std::string& reason);

}  // namespace torch_xla::lazy
