// The parts of an array by a function of this library: XLA fuses each slice with what uses it, at
// an offset of its own, so that the kernels of layers alike are all compiled.
#pragma once

#include "lowering/context.h"

namespace torch_xla::lowering {

/// How the StableHLO of a function begins that returns the parts of its argument, by slices: where
/// programs may call this library (MayCallLibraries), a call of it becomes CallUnbind.
inline constexpr std::string_view kUnbindModule = "module @torch_xla_unbind ";

/// x[0], x[1], …; `x` is not empty.
std::vector<Value> CallUnbind(Value x);

}  // namespace torch_xla::lowering
