// Functions of each element by ATen's kernels, called from the program on the device's memory:
// where XLA:CPU calls libm for one element after the other, they take a vector of them. Table
// lowering/kernel_table.inc says where.
#pragma once

#include <optional>
#include <vector>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// The node that is being lowered, of operands of one type and the output's dimensions; nothing
/// where it is not called.
std::optional<Value> CallPointwise(const LoweringContext& cx, const std::vector<Value>& operands);

}  // namespace torch_xla::lowering
