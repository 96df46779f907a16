// Functions of each element by a call, where XLA:CPU calls libm for one element after the other.
// Table lowering/kernel_table.inc says where.
#pragma once

#include <optional>
#include <vector>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// The node that is being lowered, of operands of one type and the output's dimensions; nothing
/// where it is not called.
std::optional<Value> CallPointwise(const LoweringContext& cx, const std::vector<Value>& operands);

}  // namespace torch_xla::lowering
