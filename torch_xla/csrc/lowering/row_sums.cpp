#include "lowering/row_sums.h"

#include "XLAOps.h"

namespace torch_xla::lowering {

bool IsRowSums(const ir::Node& node) {
  return &node.op() == &ir::ops::embedding_dense_backward ||
         &node.op() == &ir::ops::_embedding_bag_dense_backward;
}

void KeepAddedRows(LoweringContext& cx, const AddedRows& rows) {
  cx.Keep({rows.grad, rows.index, rows.of.value_or(Value()), rows.scale.value_or(Value()),
           rows.padding});
}

std::optional<AddedRows> FindAddedRows(const LoweringContext& cx, const ir::Node& node) {
  const auto parts = cx.Kept(node);
  if (!IsRowSums(node) || parts.empty()) return std::nullopt;
  auto optional = [](Value part) { return part.valid() ? std::optional(part) : std::nullopt; };
  return AddedRows{parts[0], parts[1], optional(parts[2]), optional(parts[3]), parts[4]};
}

cpu::AddedRowsCall AddOperands(const AddedRows& rows, int64_t grad, std::vector<Value>& operands) {
  auto add = [&](const std::optional<Value>& operand) -> int64_t {
    if (!operand) return -1;
    operands.push_back(*operand);
    return std::ssize(operands) - 1;
  };
  // In this order, as a list in braces is.
  return {grad, add(rows.index), add(rows.of), add(rows.scale), add(rows.padding)};
}

}  // namespace torch_xla::lowering
