// Reductions and scans for other lowerings.
#pragma once

#include <optional>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// The sum over `dims`, computed by a call if that is faster.
Value Sum(const LoweringContext& cx, Value x, const Dims& dims);

/// The inner product of two vectors by a call; nothing if the table chooses no call.
std::optional<Value> CallDot(const LoweringContext& cx, Value x, Value y);

/// The maximum or minimum (kMax, kMin) over `dims` with PyTorch's rule for NaN: the result is NaN
/// if an element is. XLA:CPU's own reduction of floats may drop a NaN. Use that one only if the NaN
/// reappears in whatever is computed from the result.
Value Extreme(const LoweringContext& cx, Value x, const Dims& dims, ReduceOp op);

/// The first position along dims[0] (0 if `dims` is empty) at which `x` has the given extreme. A
/// NaN counts as the extreme.
Value FirstIndex(Value x, Value extreme, const Dims& dims);

/// Reduces every prefix of `x` along `dim`.
Value Scan(Value x, int64_t dim, ReduceOp op);

}  // namespace torch_xla::lowering
