// Calls of functions of this library from a program.
#pragma once

#include <string>
#include <vector>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// The results, of these types, of the handler that is registered as `target`. It finds all arrays
/// without gaps, the last dimension the innermost. `attributes` are MLIR's, `name = value, …`.
/// Results may lie where the operands of `aliases` do.
std::vector<Value> CallLibrary(const char* target, const std::vector<Value>& operands,
                               const std::vector<stablehlo::Type>& results,
                               std::string attributes = "",
                               std::vector<stablehlo::OutputOperandAlias> aliases = {});

}  // namespace torch_xla::lowering
