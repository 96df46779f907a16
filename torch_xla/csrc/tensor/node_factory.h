// Makes nodes with their hash, memoised result shapes and source location.
#pragma once

#include <c10/core/Scalar.h>
#include <c10/util/FunctionRef.h>

#include "ir/node.h"

namespace torch_xla::tensor {

/// Makes a node with one result of a known shape.
ir::Value MakeNode(const ir::OpSpec* op, ir::Node::Operands operands, ir::Words attributes,
                   ir::ShapeRef shape);

/// Makes the node of a PyTorch operator. Its result shapes come from PyTorch's Meta kernel, which
/// is called once per thread for each combination of op, attributes and operand shapes. Throws what
/// that kernel throws.
ir::NodePtr MakeOpNode(const ir::OpSpec* op, ir::Node::Operands operands, ir::Words attributes);
/// The same, with result shapes that `infer` returns.
ir::NodePtr MakeOpNode(const ir::OpSpec* op, ir::Node::Operands operands, ir::Words attributes,
                       c10::function_ref<ir::OutputShapes()> infer);

/// Makes a leaf for a number. The number is a parameter of the program, so that another value needs
/// no compilation, except 0 and 1 (with XLA_NO_SPECIAL_SCALARS=1 these, too). `dtype` is the dtype
/// of a zero-dim tensor (`wrapped` false) or of a Python number.
ir::Value MakeScalar(const c10::Scalar& value, c10::ScalarType dtype, bool wrapped);
inline ir::Value MakeScalar(const c10::Scalar& value) {
  return MakeScalar(value, value.type(), true);
}
/// Whether a number is a constant of the program.
bool IsSpecial(const c10::Scalar& value);
/// Makes a number that is always a constant of the program: another value needs another program.
ir::Value MakeConstant(const c10::Scalar& value, c10::ScalarType dtype, bool wrapped);
/// Makes a number that is always a parameter (such as a seed).
ir::Value MakeScalarParameter(const c10::Scalar& value, c10::ScalarType dtype, bool wrapped);

/// `value` converted to `dtype` or broadcast to `sizes`; returns `value` itself if nothing changes.
ir::Value Cast(const ir::Value& value, c10::ScalarType dtype);
ir::Value Expand(const ir::Value& value, c10::IntArrayRef sizes);
/// An array whose elements are all `value`.
ir::Value Fill(const c10::Scalar& value, ir::ShapeRef shape);

/// Switches for keeping the whole call stack in nodes, and for making every number a constant of
/// the program. Both may change at any time.
void SetIrDebug(bool on);
bool IrDebug();
void SetAllNumbersSpecial(bool on);
bool AllNumbersSpecial();

}  // namespace torch_xla::tensor
