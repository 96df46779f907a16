// Infers the results of an operator by PyTorch's Meta kernel.
#pragma once

#include "ir/node.h"

namespace torch_xla::rules {

/// Calls the operator on meta tensors of the operands' shapes. Throws what the Meta kernel throws
/// for bad arguments. An undefined result gives a null shape.
ir::OutputShapes InferShapes(const ir::OpSpec& op, const ir::Node::Operands& operands,
                             const ir::Words& attributes);

}  // namespace torch_xla::rules
