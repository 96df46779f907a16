// Sums of a matrix's rows into one, as the gradient of a linear layer's bias is: a call, where the
// matrix is in memory for others anyhow. XLA:CPU sums windows of the rows, and then those sums, by
// two kernels for each shape, which it compiles first.
#pragma once

#include <optional>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// The sum over `dims` of the first operand of the node that is lowered, in float of bfloat16;
/// nothing where no call is made.
std::optional<Value> CallColumnSums(LoweringContext& cx, Value x, const Dims& dims);

}  // namespace torch_xla::lowering
