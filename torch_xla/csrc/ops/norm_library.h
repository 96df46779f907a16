// Norms of whole arrays by ATen's kernel, called from the program on the device's memory: XLA:CPU
// vectorizes sums of what it has in memory, but not of squares or sizes.
#pragma once

#include <optional>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// The norm of order `p` over all elements of `x`, of rank 0; nothing where it is not called.
std::optional<Value> CallNorm(const LoweringContext& cx, Value x, double p);

}  // namespace torch_xla::lowering
