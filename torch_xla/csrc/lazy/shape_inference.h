// The results of an operator as PyTorch's own Meta kernels give them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/ArrayRef.h>

#include <optional>

#include "ir/node.h"

namespace c10 {
class OperatorHandle;
}

namespace torch_xla::lazy {

/// Calls the operator on meta tensors of the operands' shapes. Throws what it throws for
/// bad arguments. An undefined result gives a null shape.
ir::OutputShapes InferShapes(const ir::OpSpec& op, const ir::Node::Operands& operands,
                             const ir::Words& attributes);

/// The results of the CPU's kernel for zeros of these shapes, or what it throws. Meta kernels and
/// lowerings refuse the same calls, but not always with PyTorch's words and class of error, and
/// some Meta kernels refuse what the CPU takes. Empty where that would be much work.
std::optional<ir::OutputShapes> ShapesOnCpu(const ir::OpSpec& op,
                                            const ir::Node::Operands& operands,
                                            const ir::Words& attributes);

/// Throws what the CPU's out= kernel throws for tensors of these dtypes where it would take those
/// of the node's results.
void CheckOutDtypes(const ir::Node& node, const char* out_overload,
                    c10::ArrayRef<c10::ScalarType> dtypes);
/// The same for an out= overload's handle, its other arguments and its results on the CPU.
void CheckOutDtypes(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
                    c10::ArrayRef<at::Tensor> results, c10::ArrayRef<c10::ScalarType> dtypes);

}  // namespace torch_xla::lazy
