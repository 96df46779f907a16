// Functions that are given as StableHLO text: parses what is needed to put them into a module and
// call them. The plugin parses their bodies.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "stablehlo/type.h"

namespace torch_xla::stablehlo {

/// The form of a function to take, if it has a second form that calls this process's library. For
/// control flow it is not known while tracing where the function will run, so the text holds both
/// forms.
enum class FunctionForm { kPlain, kCalling, kBoth };

struct FunctionText {
  /// A piece of text, and the function whose symbol follows it (an index in `symbols`, or -1).
  struct Piece {
    std::string text;
    int symbol = -1;
  };
  std::vector<std::string> symbols;  // without @; the first is the function to call
  std::vector<Type> arguments, results;
  std::vector<Piece> pieces;  // the functions, made private; their attributes are removed, except
                              // the one for both forms
};

/// Parses one `func.func` and the functions after it that it calls; a surrounding `module` is
/// removed. Throws an Error that names the line if the text is something else.
FunctionText ParseFunctions(std::string_view text, FunctionForm form = FunctionForm::kPlain);

/// Joins both forms of a function into one text.
std::string JoinForms(std::string_view plain, std::string_view calling);

}  // namespace torch_xla::stablehlo
