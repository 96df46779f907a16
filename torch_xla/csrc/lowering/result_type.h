// PyTorch's type promotion over the operands of a node.
#pragma once

#include <c10/core/ScalarType.h>

#include <span>

#include "ir/node.h"

namespace torch_xla::lowering {

/// A word after the attributes of a node that was made while torch.get_default_dtype() was not
/// float32: dividing integers gives that dtype. Readers of the attributes stop before it.
uint64_t DefaultDtypeWord(c10::ScalarType dtype);
/// The value of torch.get_default_dtype() when the node was made.
c10::ScalarType DefaultDtype(const ir::Node& node);

/// Tensors with dimensions outrank zero-dim tensors, which outrank Python numbers. Python numbers
/// have the default dtype, unless they are integers.
c10::ScalarType ResultType(std::span<const ir::Value> operands, c10::ScalarType default_dtype);

}  // namespace torch_xla::lowering
