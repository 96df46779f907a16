// The parts of an array by a function of this library: XLA fuses each slice with what uses it, at
// an offset of its own, so that the kernels of layers alike are all compiled.
#pragma once

#include "lowering/context.h"

namespace torch_xla::lowering {

/// x[0], x[1], …; `x` is not empty. Slices, or a call where the program may call this library.
std::vector<Value> Unbind(Value x);

}  // namespace torch_xla::lowering
