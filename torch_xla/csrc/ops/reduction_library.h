// Reductions of large arrays of floats by ATen's kernels, called from the program on the device's
// memory. XLA:CPU writes what it reduces to memory as well, and then sums 32 elements at a time,
// one after the other. Table lowering/kernel_table.inc says where.
#pragma once

#include <optional>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// Each gives nothing where no call is made.
/// In float, of bfloat16.
std::optional<Value> CallSum(const LoweringContext& cx, Value x, const Dims& dims);
std::optional<Value> CallProduct(const LoweringContext& cx, Value x, const Dims& dims);
/// Of two vectors.
std::optional<Value> CallDot(const LoweringContext& cx, Value x, Value y);
/// kMax or kMin, NaN where there is one.
std::optional<Value> CallExtreme(const LoweringContext& cx, Value x, const Dims& dims, ReduceOp op);
/// The norms of order `p`.
std::optional<Value> CallNorm(const LoweringContext& cx, Value x, const Dims& dims, double p);

}  // namespace torch_xla::lowering
