#include "tensor/transposed_product.h"

#include "XLAOps.h"
#include "tensor/node_factory.h"
#include "tensor/view.h"

namespace torch_xla::tensor {
namespace {

Ints SwapLast(c10::IntArrayRef dims) {
  Ints swapped;
  swapped.assign(dims.begin(), dims.end());
  std::swap(swapped[dims.size() - 1], swapped[dims.size() - 2]);
  return swapped;
}

/// `value` with its last two dimensions exchanged. An existing exchange is undone instead.
ir::Value Transposed(const ir::Value& value) {
  ir::Value base = value;
  const Ints sizes = SwapLast(value.shape()->dims);
  Ints strides = SwapLast(ContiguousStrides(value.shape()->dims));
  if (const ir::Node& node = *value.node; &node.op() == &ir::ops::as_strided) {
    ir::AttributeReader attributes(node.attributes());
    attributes.IntList();
    const c10::IntArrayRef over_operand = attributes.IntList();
    const ir::Value& operand = node.operands()[0];
    if (attributes.Int() == 0 && operand.shape()->numel == value.shape()->numel) {
      base = operand;
      strides = SwapLast(over_operand);
    }
  }
  if (c10::IntArrayRef(base.shape()->dims) == c10::IntArrayRef(sizes) && IsDense(sizes, strides)) {
    return base;
  }
  return MakeStrided(base, {sizes, strides, 0, std::nullopt});
}

}  // namespace

ir::Value TransposedProduct(const ir::Value& value) {
  const ir::Node& node = *value.node;
  if (&node.op() != &ir::ops::mm && &node.op() != &ir::ops::bmm) return {};
  ir::Value product = MakeNode(
      &node.op(), {Transposed(node.operands()[1]), Transposed(node.operands()[0])},
      node.attributes(), ir::GetShape(value.shape()->dtype, SwapLast(value.shape()->dims)));
  product.node->set_location(node.location());
  return product;
}

}  // namespace torch_xla::tensor
