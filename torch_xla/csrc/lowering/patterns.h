// Patterns over several nodes of a graph, which one call or a shorter formula computes together.
// The lowering of a node asks whether the node is part of a pattern. The answer depends on the
// kernels that were chosen for the nodes before it. docs/op_lowering.md lists all patterns.
#pragma once

#include <optional>
#include <vector>

#include "cpu/calls.h"
#include "lowering/context.h"

namespace torch_xla::lowering {

// ---- Batch norm, an optional addition, ReLU

/// A ReLU that becomes part of the call of a batch norm.
struct Rectifier {
  const ir::Node* relu = nullptr;  // null if the pattern does not match
  std::optional<Value> addend;     // the value that is added to the batch norm before the ReLU
};
/// Returns the ReLU that is the only reader of the batch norm that is being lowered.
Rectifier FindRectifier(LoweringContext& cx);

/// The gradient with which the backward pass of a batch norm begins.
struct RectifiedGrad {
  Value grad;                                     // of the ReLU's result, if there is a ReLU
  std::optional<Value> rectified = std::nullopt;  // the ReLU's result
};
/// Returns the gradient of the ReLU's result if `grad_output` is computed from it by the gradient
/// of a ReLU that nothing else reads, and otherwise `grad_output` itself.
RectifiedGrad FindRectifiedGrad(LoweringContext& cx, Value grad_output);

// ---- Matrix product with a bias, log-softmax, cross entropy

/// An array [rows…, columns] as the sum of `x` and an optional `bias` [columns] that is added to
/// each row.
struct BiasedRows {
  Value x;
  std::optional<Value> bias;
};
/// Records that the node that is being lowered is the sum of this product and its bias.
void KeepProduct(LoweringContext& cx, const BiasedRows& product);
/// Returns the product and the bias of which `x` is the sum, if that was recorded, and otherwise
/// `x` without a bias. `x` must be the first operand of the node that is being lowered.
BiasedRows FindProduct(const LoweringContext& cx, Value x);

/// A log-softmax over the last dimension.
struct LogSoftmax {
  BiasedRows rows;
  Value maximum, log_sum;  // for each row: the maximum, and the logarithm of sum(exp(x - maximum))
};
/// Records that the node that is being lowered is this log-softmax.
void KeepLogSoftmax(LoweringContext& cx, const LogSoftmax& made);
/// Returns the log-softmax whose gradient is being lowered, or nothing if the log-softmax was
/// lowered without a record.
std::optional<LogSoftmax> FindLogSoftmax(const LoweringContext& cx);
/// Returns for each sample the only class at which `grad` may differ from zero, or nothing if
/// `grad` is not the gradient of a negative log likelihood. The class of a sample without weight is
/// arbitrary.
std::optional<Value> FindOnlyClass(const LoweringContext& cx, const ir::Value& grad,
                                   const Dims& dims);

// ---- Sums of columns

/// Whether the node that is being lowered reads its first operand from memory: the operand is a
/// parameter of the program, or a result that other nodes read, too. Otherwise XLA can sum the
/// elements while it computes them.
bool ReadsMemory(LoweringContext& cx);

// ---- Gradients of embeddings: tables that are zero except for a few rows, which are sums of rows
// of the gradient

/// The description of such a table. For each k, row `of[k]` of `grad` (row k without `of`) is
/// multiplied by `scale[k]` and added to row `index[k]` of the table. Indices that are out of range
/// or equal to `padding` are skipped.
struct AddedRows {
  Value grad, index;
  std::optional<Value> of, scale;
  Value padding;  // of rank 0
};

/// Records that the node that is being lowered is this table.
void KeepAddedRows(LoweringContext& cx, const AddedRows& rows);
/// Returns the description that was recorded for `node`, or nothing if there is none.
std::optional<AddedRows> FindAddedRows(const LoweringContext& cx, const ir::Node& node);
/// Whether the operation of `node` can have such a description.
bool IsRowSums(const ir::Node& node);

/// Returns the attributes of a call that makes the table. Appends the operands of the call to
/// `operands`, except for `rows.grad`, which must be operand number `grad` already.
cpu::AddedRowsCall AddOperands(const AddedRows& rows, int64_t grad, std::vector<Value>& operands);

}  // namespace torch_xla::lowering
