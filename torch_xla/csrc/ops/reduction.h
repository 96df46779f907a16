// Reductions and scans for other lowerings.
#pragma once

#include <optional>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// Returns the sum over `dims`, which a call computes if the table of kernels chooses the call.
Value Sum(const LoweringContext& cx, Value x, const Dims& dims);

/// Returns the inner product of two vectors, computed by a call, or nothing if the table of kernels
/// chooses no call.
std::optional<Value> CallDot(const LoweringContext& cx, Value x, Value y);

/// Returns the maximum (kMax) or minimum (kMin) over `dims` with PyTorch's rule for NaN: the result
/// is NaN if an element is NaN. stablehlo::Reduce may drop a NaN on the CPU and in programs over
/// several devices. Use it only if the NaN reappears in everything that is computed from the
/// result.
Value Extreme(const LoweringContext& cx, Value x, const Dims& dims, ReduceOp op);

/// Returns the first position along dims[0] at which `x` has the value `extreme` or is NaN. Returns
/// 0 if `dims` is empty.
Value FirstIndex(Value x, Value extreme, const Dims& dims);

/// Returns the reductions of all prefixes of `x` along `dim`.
Value Scan(Value x, int64_t dim, ReduceOp op);

}  // namespace torch_xla::lowering
