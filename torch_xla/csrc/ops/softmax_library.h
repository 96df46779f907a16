// Softmax and log-softmax along rows of float by ATen's kernels on a few rows at a time, or what
// log-softmax subtracts and cross entropy's gradient by ours: XLA writes all that it reduces to
// memory first. Table lowering/kernel_table.inc says where.
#pragma once

#include <optional>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// Rows [rows…, columns]: `x` and, where there is one, `bias` [columns], which is added to each.
struct BiasedRows {
  Value x;
  std::optional<Value> bias;
};

/// Of each row: the maximum, and the logarithm of the sum of exp(x - maximum).
struct RowSums {
  Value maximum, log_sum;
};

/// Whether a call is the fastest for those of log-softmax over `dims`, of what is not empty.
bool CallsRowSums(const LoweringContext& cx, Value x, const Dims& dims);
RowSums CallRowSums(const BiasedRows& rows);

/// The gradient of log-softmax's argument where that of its result is `grad` [rows] at the class
/// of each of [rows, columns], and zero elsewhere.
Value CallCrossEntropyBackward(const BiasedRows& rows, const RowSums& sums, Value classes,
                               Value grad);

/// Whether log-softmax over `dims`, and what cross entropy makes of it, are calls of their own.
bool CallsCrossEntropy(const LoweringContext& cx, Value x, const Dims& dims);

/// Log-softmax as a whole, and the gradient of its argument from that of its result `output`.
std::optional<Value> CallLogSoftmax(const LoweringContext& cx, Value x, const Dims& dims);
std::optional<Value> CallLogSoftmaxBackward(const LoweringContext& cx, Value grad, Value output,
                                            const Dims& dims);

/// The softmax of `x` over `dims`; `safe`: zeros where all of them are -inf.
std::optional<Value> CallSoftmax(const LoweringContext& cx, Value x, const Dims& dims, bool safe);

/// The gradient of its argument from that of its result `output`.
std::optional<Value> CallSoftmaxBackward(const LoweringContext& cx, Value grad, Value output,
                                         const Dims& dims);

}  // namespace torch_xla::lowering
