// Makes nodes: hash, memoised result shapes, source location.
#pragma once

#include <c10/core/Scalar.h>
#include <c10/util/FunctionRef.h>

#include "ir/node.h"

namespace torch_xla::lazy {

/// A node with one result of a known shape.
ir::Value MakeNode(const ir::OpSpec* op, ir::Node::Operands operands, ir::Words attributes,
                   ir::ShapeRef shape);

/// A PyTorch operator's node. Its results come from PyTorch's Meta kernel, called once per
/// (op, attributes, operand shapes) and thread; throws what that kernel throws.
ir::NodePtr MakeOpNode(const ir::OpSpec* op, ir::Node::Operands operands, ir::Words attributes);
/// The same with result shapes that follow from the operands in a way known to the caller.
ir::NodePtr MakeOpNode(const ir::OpSpec* op, ir::Node::Operands operands, ir::Words attributes,
                       c10::function_ref<ir::OutputShapes()> infer);

/// A leaf for a number. It is a parameter of the program, so that another value needs no
/// compilation, but for 0 and 1 (XLA_NO_SPECIAL_SCALARS=1: for these, too).
/// `dtype`: of a zero-dim tensor (`wrapped` false) or of a Python number.
ir::Value MakeScalar(const c10::Scalar& value, c10::ScalarType dtype, bool wrapped);
inline ir::Value MakeScalar(const c10::Scalar& value) {
  return MakeScalar(value, value.type(), true);
}
/// Whether a number is one of those that are constants of the program.
bool IsSpecial(const c10::Scalar& value);
/// A number that is part of the program whatever it is: another one is another program.
ir::Value MakeConstant(const c10::Scalar& value, c10::ScalarType dtype, bool wrapped);
/// A number that must not be specialised (a seed).
ir::Value MakeScalarParameter(const c10::Scalar& value, c10::ScalarType dtype, bool wrapped);

/// `value` converted to `dtype` or broadcast to `sizes`; itself where nothing changes.
ir::Value Cast(const ir::Value& value, c10::ScalarType dtype);
ir::Value Expand(const ir::Value& value, c10::IntArrayRef sizes);
/// Every element is `value`.
ir::Value Fill(const c10::Scalar& value, ir::ShapeRef shape);

/// Whether nodes keep the whole stack of calls, and whether every number is part of the program (no
/// parameter): both may be changed at any time.
void SetIrDebug(bool on);
bool IrDebug();
void SetAllNumbersSpecial(bool on);
bool AllNumbersSpecial();

}  // namespace torch_xla::lazy
