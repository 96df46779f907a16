// Patterns over several nodes of a graph, which a call or a shorter formula computes together. The
// lowering of a node asks for its pattern: whether there is one depends on the kernels that were
// chosen for the nodes before it. docs/op_lowering.md has the list of all patterns.
#pragma once

#include <optional>
#include <vector>

#include "cpu/calls.h"
#include "lowering/context.h"

namespace torch_xla::lowering {

// ---- Batch norm, perhaps an addition, ReLU

/// The ReLU that alone reads the batch norm that is lowered, and becomes part of its call.
struct Rectifier {
  const ir::Node* relu = nullptr;  // null if there is none
  std::optional<Value> addend;     // added between the two
};
Rectifier FindRectifier(LoweringContext& cx);

/// The gradient that a batch norm's gradient reads. If it comes through a ReLU that nothing else
/// reads, `grad` is the ReLU's, and `rectified` its result.
struct RectifiedGrad {
  Value grad;
  std::optional<Value> rectified = std::nullopt;
};
RectifiedGrad FindRectifiedGrad(LoweringContext& cx, Value grad_output);

// ---- Matrix product with a bias, log-softmax, cross entropy

/// Rows [rows…, columns]: `x`, and perhaps a `bias` [columns] that is added to each row.
struct BiasedRows {
  Value x;
  std::optional<Value> bias;
};
/// Notes that the node that is lowered is this product and its bias.
void KeepProduct(LoweringContext& cx, const BiasedRows& product);
/// The first operand of the node that is lowered, `x`, as a product and a bias if it is such a
/// node.
BiasedRows FindProduct(const LoweringContext& cx, Value x);

/// A log-softmax over the last dimension. For each row: the maximum, and the logarithm of the sum
/// of exp(x - maximum).
struct LogSoftmax {
  BiasedRows rows;
  Value maximum, log_sum;
};
/// Notes that the node that is lowered is this log-softmax.
void KeepLogSoftmax(LoweringContext& cx, const LogSoftmax& made);
/// The log-softmax whose gradient is lowered; none if it was lowered in another way.
std::optional<LogSoftmax> FindLogSoftmax(const LoweringContext& cx);
/// The class at which `grad` may differ from zero, for each sample. There is one if `grad` is the
/// gradient of a negative log likelihood. If a sample has no weight, its class may be any.
std::optional<Value> FindOnlyClass(const LoweringContext& cx, const ir::Value& grad,
                                   const Dims& dims);

// ---- Sums of columns

/// Whether the node that is lowered reads memory: a parameter of the program, or a result that
/// others read, too. Otherwise XLA may sum the elements while it computes them.
bool ReadsMemory(LoweringContext& cx);

// ---- Gradients of embeddings: tables of zeros but for a few rows, which are sums of other rows

/// Which rows of `grad` to add where: row `of[k]` (k where there is none), times `scale[k]`, to row
/// `index[k]` of the table. Indices out of range, and those equal to `padding`, are left out.
struct AddedRows {
  Value grad, index;
  std::optional<Value> of, scale;
  Value padding;  // of rank 0
};

/// Notes that they make the node that is lowered.
void KeepAddedRows(LoweringContext& cx, const AddedRows& rows);
/// What makes such a node; none where another way was chosen, or it is no such node.
std::optional<AddedRows> FindAddedRows(const LoweringContext& cx, const ir::Node& node);
/// Whether it may be one.
bool IsRowSums(const ir::Node& node);

/// What a call is told that makes such a table: adds its operands but for `rows.grad`, which is
/// operand `grad`.
cpu::AddedRowsCall AddOperands(const AddedRows& rows, int64_t grad, std::vector<Value>& operands);

}  // namespace torch_xla::lowering
