// PyTorch's type promotion over the operands of a node.
#pragma once

#include <c10/core/ScalarType.h>

#include <span>

#include "ir/node.h"

namespace torch_xla::lowering {

/// A word after the attributes of a node that was made while torch.get_default_dtype() was another
/// than float32: half of an integer is of that dtype then. Nobody reads so far.
uint64_t DefaultDtypeWord(c10::ScalarType dtype);
/// torch.get_default_dtype() when the node was made.
c10::ScalarType DefaultDtype(const ir::Node& node);

/// Dimensioned tensors outrank zero-dim ones, those outrank Python numbers, which are of the
/// default dtype where they are no integers.
c10::ScalarType ResultType(std::span<const ir::Value> operands, c10::ScalarType default_dtype);

}  // namespace torch_xla::lowering
