// Tables of zeros but for a few rows, which are sums of others: the gradients of embeddings, which
// a call makes (cpu/row_sums.h).
#pragma once

#include <optional>
#include <vector>

#include "cpu/calls.h"
#include "lowering/context.h"

namespace torch_xla::lowering {

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
