// Elementwise functions that are computed by calls of ATen's kernels, because XLA:CPU would call
// libm for each element. lowering/kernel_table.inc decides when the calls are used.
#pragma once

#include <optional>
#include <vector>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// Returns the result of the call for the node that is being lowered, or nothing if the table
/// chooses no call. The operands must have the same type, and the dimensions of the output.
std::optional<Value> CallPointwise(const LoweringContext& cx, const std::vector<Value>& operands);

}  // namespace torch_xla::lowering
