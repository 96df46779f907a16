// Stacks and unstacks arrays of one type by calls of this library. XLA's concatenation has a branch
// for each array. XLA fuses each slice with the operation that reads the slice, and the offsets
// differ, so that equal layers of a model would be compiled separately.
#pragma once

#include "lowering/context.h"

namespace torch_xla::lowering {

/// Stacks `parts`, which have the same type, to an array [parts.size(), …]. A call does so if the
/// program may call this library, and XLA's operation otherwise.
Value Stack(const std::vector<Value>& parts);

/// Returns x[0], x[1], … of an array `x` that is not empty, either as slices or by a call.
std::vector<Value> Unbind(Value x);

/// Returns an array whose elements are all written later, such as the results that a loop stacks.
/// The array is not initialized if the program may call this library, and consists of zeros
/// otherwise.
Value Empty(stablehlo::Builder& builder, const stablehlo::Type& type);

}  // namespace torch_xla::lowering
