// Reductions and scans that other lowerings are made of, too.
#pragma once

#include <optional>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// The sum over `dims`, by a call where that is faster.
Value Sum(const LoweringContext& cx, Value x, const Dims& dims);

/// The product of two vectors by a call; nothing where none is made.
std::optional<Value> CallDot(const LoweringContext& cx, Value x, Value y);

/// The largest or the least (kMax, kMin) over `dims` as PyTorch has it: a NaN beats every number.
/// Of floats, XLA:CPU's own may drop a NaN, which does not matter where it comes back in what is
/// made of the result.
Value Extreme(const LoweringContext& cx, Value x, const Dims& dims, ReduceOp op);

/// Where along dims[0] (no dims: 0) the extreme that a reduction of `x` gave first is; a NaN
/// beats every number.
Value FirstIndex(Value x, Value extreme, const Dims& dims);

/// Every prefix of `x` along `dim` reduced.
Value Scan(Value x, int64_t dim, ReduceOp op);

}  // namespace torch_xla::lowering
