// Calls of functions of this library from a program.
#pragma once

#include <functional>
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

/// A function, as text in both its forms (stablehlo/function_text.h).
using FormBody =
    std::function<std::vector<Value>(stablehlo::Builder&, const std::vector<Value>& arguments)>;
std::string BothForms(const std::vector<stablehlo::Type>& arguments, const FormBody& plain,
                      const FormBody& calling);

}  // namespace torch_xla::lowering
