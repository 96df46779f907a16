// Calls PyTorch's kernels with tensors that stand for the operands of a node.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "ir/node.h"

namespace torch_xla::rules {

/// The arguments of a node for the dispatcher. Tensors have no data. Numbers, also in place of a
/// tensor, have their value if it is known.
torch::jit::Stack MetaArguments(const ir::OpSpec& op, const ir::Node::Operands& operands,
                                const ir::Words& attributes);

/// The same arguments with each tensor replaced.
torch::jit::Stack WithTensors(const torch::jit::Stack& arguments,
                              c10::function_ref<at::Tensor(const at::Tensor&)> replace);

/// Calls the operator's kernel below autograd, autocast and Python modes.
void CallBelow(const c10::OperatorHandle& op, torch::jit::Stack& stack);

/// The same for arguments on Meta, with a kernel of rules/meta_kernels.h if there is one.
void CallMeta(const c10::OperatorHandle& op, torch::jit::Stack& stack);

/// The shapes of the results that a call has left on the stack. An undefined result gives a null
/// shape.
ir::OutputShapes ShapesOf(const torch::jit::Stack& results);

}  // namespace torch_xla::rules
