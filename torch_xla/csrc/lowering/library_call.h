// Calls of functions of this library from a program.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cpu/calls.h"
#include "lowering/context.h"

namespace torch_xla::lowering {

/// The results, of these types, of the handler that is registered as `target`. It finds all arrays
/// without gaps, the last dimension the innermost, and `words`.
/// Results may lie where the operands of `aliases` do.
std::vector<Value> CallLibrary(const char* target, const std::vector<Value>& operands,
                               const std::vector<stablehlo::Type>& results,
                               const cpu::Words& words = {},
                               std::vector<stablehlo::OutputOperandAlias> aliases = {});
/// The same with the words of a struct (cpu/calls.h).
template <typename Call>
std::vector<Value> CallLibrary(const char* target, const std::vector<Value>& operands,
                               const std::vector<stablehlo::Type>& results, const Call& call,
                               std::vector<stablehlo::OutputOperandAlias> aliases = {}) {
  return CallLibrary(target, operands, results, cpu::ToWords(call), std::move(aliases));
}

/// The attribute that has them.
std::string WordsText(const cpu::Words& words);

/// A function, as text in both its forms (stablehlo/function_text.h).
using FormBody =
    std::function<std::vector<Value>(stablehlo::Builder&, const std::vector<Value>& arguments)>;
std::string BothForms(const std::vector<stablehlo::Type>& arguments, const FormBody& plain,
                      const FormBody& calling);

}  // namespace torch_xla::lowering
