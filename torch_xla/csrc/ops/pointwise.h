// Elementwise functions by calls of ATen's kernels; XLA:CPU would call libm for each element.
// lowering/kernel_table.inc says when they are used.
#pragma once

#include <optional>
#include <vector>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// The call for the node that is being lowered. The operands have the same type and the dimensions
/// of the output. Returns nothing if the table chooses no call.
std::optional<Value> CallPointwise(const LoweringContext& cx, const std::vector<Value>& operands);

}  // namespace torch_xla::lowering
