// Arrays whose elements are all written later, as what a loop stacks is: XLA's are filled before.
#pragma once

#include "lowering/context.h"

namespace torch_xla::lowering {

/// Zeros, or whatever lies there where the program may call this library.
Value Empty(stablehlo::Builder& builder, const stablehlo::Type& type);

}  // namespace torch_xla::lowering
