// Arrays alike as one, and its parts, by functions of this library. XLA has a branch for each in
// the kernel that joins them, and fuses each part with what uses it, at an offset of its own, so
// that the kernels of layers alike are all compiled.
#pragma once

#include "lowering/context.h"

namespace torch_xla::lowering {

/// [parts.size(), …] of parts of one type. XLA's operation, or a call where the program may call
/// this library.
Value Stack(const std::vector<Value>& parts);

/// x[0], x[1], …; `x` is not empty. Slices, or such a call.
std::vector<Value> Unbind(Value x);

/// Zeros, or whatever lies there where the program may call this library: of arrays whose elements
/// are all written later, as what a loop stacks is. XLA's are filled before.
Value Empty(stablehlo::Builder& builder, const stablehlo::Type& type);

}  // namespace torch_xla::lowering
