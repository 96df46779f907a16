// Functions that a user wrote as StableHLO text: what has to be known of them to put them into
// a module and call them. The body is the plugin's to parse.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "stablehlo/type.h"

namespace torch_xla::stablehlo {

/// Which of a function's two forms is wanted, where it has another that calls this process'
/// library: of control flow, what is traced does not tell yet where it will run.
enum class FunctionForm { kPlain, kCalling, kBoth };

struct FunctionText {
  /// Text, and the function whose symbol follows it (an index of `symbols`, or -1).
  struct Piece {
    std::string text;
    int symbol = -1;
  };
  std::vector<std::string> symbols;  // as written, without @; the first is the one to call
  std::vector<Type> arguments, results;
  std::vector<Piece> pieces;  // those functions, private, with no attribute but for both forms'
};

/// Parses one `func.func` and, behind it, those that it calls; a `module` around them is taken
/// off. Throws Error with the line where the text is not that.
FunctionText ParseFunctions(std::string_view text, FunctionForm form = FunctionForm::kPlain);

/// One text for both forms of a function.
std::string JoinForms(std::string_view plain, std::string_view calling);

}  // namespace torch_xla::stablehlo
