#include "lowering/patterns.h"

#include <c10/util/strides.h>

#include "XLAOps.h"
#include "ir/attributes.h"

namespace torch_xla::lowering {
namespace {

/// Whether a node is a reshape: a view of all elements of its operand, in their order.
bool IsReshape(const ir::Node& node) {
  if (&node.op() != &ir::ops::as_strided) return false;
  ir::AttributeReader words(node.attributes());
  const c10::IntArrayRef sizes = words.IntList(), strides = words.IntList();
  return strides == c10::IntArrayRef(c10::contiguous_strides(sizes)) &&
         node.shape(0)->numel == node.operands()[0].shape()->numel;
}

/// Whether a view has all elements of its operand, with dense rows. Products read through a
/// transposed view, so its elements need not be in memory.
bool ShowsRows(const ir::Node& view) {
  ir::AttributeReader words(view.attributes());
  const c10::IntArrayRef sizes = words.IntList(), strides = words.IntList();
  return !sizes.empty() && strides.back() == 1 &&
         view.shape(0)->numel == view.operands()[0].shape()->numel;
}

}  // namespace

Rectifier FindRectifier(LoweringContext& cx) {
  const ir::Node& node = cx.node();
  Rectifier rectifier{cx.NextSoleReader(node), std::nullopt};
  // In bfloat16 the fused operations would lack a rounding that the separate ones have.
  if (const ir::Node* add = rectifier.relu;
      add && &add->op() == &ir::ops::add_Tensor && cx.output_element() == ElementType::kF32) {
    const auto& operands = add->operands();
    const ir::Value& addend = operands[operands[0].node.get() == &node ? 1 : 0];
    if (!IsNumber(operands[2], 1) || addend.shape() != node.shape(0) || !cx.IsLowered(addend)) {
      return {};
    }
    rectifier = {cx.NextSoleReader(*add), cx.Lowered(addend)};
  }
  if (!rectifier.relu || &rectifier.relu->op() != &ir::ops::relu) return {};
  return rectifier;
}

RectifiedGrad FindRectifiedGrad(LoweringContext& cx, Value grad_output) {
  const ir::Value& value = cx.node().operands()[0];
  const ir::Node& gate = *value.node;
  if (&gate.op() != &ir::ops::threshold_backward || cx.SoleReader(gate) != &cx.node() ||
      !IsNumber(gate.operands()[2], 0)) {
    return {grad_output};
  }
  const ir::Value &grad = gate.operands()[0], &rectified = gate.operands()[1];
  for (const ir::Value* operand : {&grad, &rectified}) {
    if (operand->shape() != value.shape() || !cx.IsLowered(*operand)) return {grad_output};
  }
  return {cx.Lowered(grad), cx.Lowered(rectified)};
}

void KeepProduct(LoweringContext& cx, const BiasedRows& product) {
  cx.Keep({product.x, *product.bias});
}

BiasedRows FindProduct(const LoweringContext& cx, Value x) {
  const ir::Node* node = cx.node().operands()[0].node.get();
  while (IsReshape(*node)) node = node->operands()[0].node.get();
  const std::span<const Value> parts = cx.Kept(*node);
  if (&node->op() != &ir::ops::addmm || parts.empty() || parts[0].element() != x.element() ||
      parts[1].dim(0) != x.dim(-1)) {
    return {x, std::nullopt};
  }
  return {Reshape(parts[0], x.dims()), parts[1]};
}

void KeepLogSoftmax(LoweringContext& cx, const LogSoftmax& made) {
  cx.Keep({made.maximum, made.log_sum, made.rows.x, made.rows.bias.value_or(Value())});
}

std::optional<LogSoftmax> FindLogSoftmax(const LoweringContext& cx) {
  const ir::Node& forward = *cx.node().operands()[1].node;
  const std::span<const Value> parts = cx.Kept(forward);
  if (&forward.op() != &ir::ops::_log_softmax || parts.empty()) return std::nullopt;
  const std::optional<Value> bias = parts[3].valid() ? std::optional(parts[3]) : std::nullopt;
  return LogSoftmax{{parts[2], bias}, parts[0], parts[1]};
}

std::optional<Value> FindOnlyClass(const LoweringContext& cx, const ir::Value& grad,
                                   const Dims& dims) {
  const ir::Node& node = *grad.node;
  if (&node.op() != &ir::ops::nll_loss_backward && &node.op() != &ir::ops::nll_loss2d_backward) {
    return std::nullopt;
  }
  const ir::Value &self = node.operands()[1], &target = node.operands()[2];
  const int64_t class_dim = self.shape()->rank() > 1 ? 1 : 0;
  if (dims != Dims{class_dim} || !cx.IsLowered(target)) return std::nullopt;
  return cx.Lowered(target);
}

bool ReadsMemory(LoweringContext& cx) {
  const ir::Node* reader = &cx.node();
  for (;;) {  // Readers do not share views, so follow each view to what it shows.
    const ir::Value& operand = reader->operands()[0];
    const ir::Node& node = *operand.node;
    const bool is_view = &node.op() == &ir::ops::as_strided;
    if (is_view && !ShowsRows(node)) return false;
    if (operand.index > 0 || cx.SoleReader(node) != reader) return true;
    if (!is_view) return &node.op() == &ir::ops::device_data;
    reader = &node;
  }
}

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
  // The elements of a list in braces are evaluated from left to right.
  return {grad, add(rows.index), add(rows.of), add(rows.scale), add(rows.padding)};
}

}  // namespace torch_xla::lowering
