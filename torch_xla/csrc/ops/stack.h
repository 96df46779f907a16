// Stacks and unstacks arrays of one type by calls of this library. XLA's own concatenation has a
// branch for each array. XLA fuses each slice, at an offset of its own, with the operation that
// reads it, so equal layers of a model would be compiled separately.
#pragma once

#include "lowering/context.h"

namespace torch_xla::lowering {

/// Stacks parts of one type to [parts.size(), …]: by a call if the program may call this library,
/// else by XLA's operation.
Value Stack(const std::vector<Value>& parts);

/// Returns x[0], x[1], … of an `x` that is not empty, as slices or by such a call.
std::vector<Value> Unbind(Value x);

/// An array whose elements are all written later, such as the results that a loop stacks: not
/// initialized if the program may call this library, else zeros.
Value Empty(stablehlo::Builder& builder, const stablehlo::Type& type);

}  // namespace torch_xla::lowering
