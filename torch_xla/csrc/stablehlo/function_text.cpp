#include "stablehlo/function_text.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "stablehlo/text.h"

namespace torch_xla::stablehlo {
namespace {

bool IsNameChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '$' || c == '-';
}

/// Reads MLIR text from left to right.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  size_t at() const { return at_; }
  bool AtEnd() {
    SkipSpace();
    return at_ == text_.size();
  }
  std::string_view Since(size_t begin) const { return text_.substr(begin, at_ - begin); }

  /// Consumes `token` if it comes next; a word only matches as a whole.
  bool Take(std::string_view token) {
    SkipSpace();
    if (!text_.substr(at_).starts_with(token)) return false;
    const size_t end = at_ + token.size();
    if (IsNameChar(token.back()) && end < text_.size() && IsNameChar(text_[end])) return false;
    at_ = end;
    return true;
  }
  void Expect(std::string_view token) {
    if (!Take(token)) Fail(Cat("expected `", token, "`"));
  }
  /// Reads a name after a sigil (@ or %).
  std::string Name(char sigil, std::string_view what) {
    SkipSpace();
    const size_t begin = at_ + 1;
    if (at_ == text_.size() || text_[at_] != sigil) Fail(Cat("expected ", what));
    size_t end = begin;
    while (end < text_.size() && IsNameChar(text_[end])) ++end;
    if (end == begin) Fail(Cat("expected ", what, ", a plain name"));
    at_ = end;
    return std::string(text_.substr(begin, end - begin));
  }
  /// Consumes everything from a bracket to its closing bracket; calls `each` for every @name
  /// within.
  template <typename F>
  void Balanced(char open, char close, F each) {
    Expect(std::string_view(&open, 1));
    const size_t begin = at_;
    for (int depth = 1; depth > 0;) {
      SkipSpace();
      if (at_ == text_.size()) {
        at_ = begin;
        Fail(Cat("`", std::string_view(&open, 1), "` is never closed"));
      }
      const char c = text_[at_];
      if (c == '"') {
        SkipString();
      } else if (c == '@' && at_ + 1 < text_.size() && text_[at_ + 1] != '"') {
        const size_t symbol = at_;
        each(symbol, Name('@', "a symbol"));
      } else {
        depth += c == open ? 1 : c == close ? -1 : 0;
        ++at_;
      }
    }
  }
  void SkipBalanced(char open, char close) {
    Balanced(open, close, [](size_t, const std::string&) {});
  }
  bool Next(char c) {
    SkipSpace();
    return at_ < text_.size() && text_[at_] == c;
  }

  Type TensorType() {
    Expect("tensor");
    Expect("<");
    const size_t begin = at_;
    Dims dims;
    for (;;) {
      SkipSpace();
      if (Next('?')) Fail("the shape is dynamic: expected a number for each dimension");
      if (at_ == text_.size() || text_[at_] < '0' || text_[at_] > '9') break;
      int64_t size = 0;
      auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), size);
      if (error != std::errc()) Fail("expected the size of a dimension");
      at_ = static_cast<size_t>(end - text_.data());
      dims.push_back(size);
      SkipSpace();
      if (at_ == text_.size() || text_[at_] != 'x') Fail("expected `x` after a dimension");
      ++at_;
    }
    const size_t element = at_;
    while (at_ < text_.size() && text_[at_] != '>' && text_[at_] != ',') ++at_;
    if (Since(element).starts_with("complex<")) ++at_;
    const ElementType found = ElementNamed(Since(element));
    if (found == ElementType::kInvalid) {
      at_ = begin;
      Fail("expected an element type such as f32, bf16, i64, ui8, i1 or complex<f32>");
    }
    Expect(">");
    return Type(found, std::move(dims));
  }

  [[noreturn]] void Fail(std::string_view expected) const {
    const auto line =
        1 + std::count(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(at_), '\n');
    std::string_view rest = text_.substr(at_);
    rest = rest.substr(0, std::min<size_t>(rest.find('\n'), 40));
    throw Error(Cat("StableHLO text, line ", line, ": ", expected, ", got ",
                    rest.empty() ? std::string("its end") : Cat("`", rest, "`")));
  }

 private:
  /// Skips white space and comments.
  void SkipSpace() {
    while (at_ < text_.size()) {
      if (std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) {
        ++at_;
      } else if (text_.substr(at_).starts_with("//")) {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else {
        return;
      }
    }
  }
  void SkipString() {
    const size_t begin = at_++;
    while (at_ < text_.size() && text_[at_] != '"') at_ += text_[at_] == '\\' ? 2 : 1;
    if (at_ >= text_.size()) {
      at_ = begin;
      Fail("a string is never closed");
    }
    ++at_;
  }
  static ElementType ElementNamed(std::string_view name) {
    for (auto i = static_cast<int>(ElementType::kPred); i <= static_cast<int>(ElementType::kC128);
         ++i) {
      if (runtime::MlirName(static_cast<ElementType>(i)) == name)
        return static_cast<ElementType>(i);
    }
    return ElementType::kInvalid;
  }

  std::string_view text_;
  size_t at_ = 0;
};

/// An attribute of a function that names its other form.
constexpr std::string_view kCallingForm = "torch_xla.calling";

/// A parsed function: its name, its signature, and the positions of symbols in its body.
struct Function {
  struct Reference {
    size_t at;  // in the body
    std::string symbol;
    int function = -1;  // index among all functions; -1 for another symbol, such as the target of a
                        // custom call
  };
  std::string symbol;
  std::vector<std::string> parameters;
  std::vector<Type> arguments, results;
  std::string_view body;  // with its braces
  std::vector<Reference> references;
  std::optional<Reference> calling;  // the function's other form
};

Function ParseFunction(Cursor& cursor) {
  Function function;
  cursor.Expect("func.func");
  for (std::string_view visibility : {"public", "private", "nested"}) {
    if (cursor.Take(visibility)) break;
  }
  function.symbol = cursor.Name('@', "the function's name, @name");
  cursor.Expect("(");
  while (!cursor.Take(")")) {
    if (!function.arguments.empty()) cursor.Expect(",");
    function.parameters.push_back(cursor.Name('%', "a parameter, %name"));
    cursor.Expect(":");
    function.arguments.push_back(cursor.TensorType());
    if (cursor.Next('{')) cursor.SkipBalanced('{', '}');
  }
  if (cursor.Take("->")) {
    if (cursor.Take("(")) {
      while (!cursor.Take(")")) {
        if (!function.results.empty()) cursor.Expect(",");
        function.results.push_back(cursor.TensorType());
        if (cursor.Next('{')) cursor.SkipBalanced('{', '}');
      }
    } else {
      function.results.push_back(cursor.TensorType());
    }
  }
  if (cursor.Take("attributes")) {
    const size_t begin = cursor.at();
    cursor.Balanced('{', '}', [&](size_t, std::string symbol) {
      if (cursor.Since(begin).ends_with(Cat(kCallingForm, " = @", symbol))) {
        function.calling = Function::Reference{0, std::move(symbol)};
      }
    });
  }
  if (!cursor.Next('{')) cursor.Fail("expected the function's body, `{`");
  const size_t body = cursor.at();
  cursor.Balanced('{', '}', [&](size_t at, std::string symbol) {
    function.references.push_back({at - body, std::move(symbol)});
  });
  function.body = cursor.Since(body);
  return function;
}

std::string Signature(const Function& function) {
  std::string text = "(";
  for (size_t i = 0; i < function.arguments.size(); ++i) {
    text += Cat(i > 0 ? ", %" : "%", function.parameters[i], ": ");
    function.arguments[i].AppendTo(text);
  }
  return Cat(text, ") -> (", TypeNames(function.results), ") ");
}

std::vector<Function> Parse(std::string_view text) {
  Cursor cursor(text);
  const bool module = cursor.Take("module");
  if (module) {
    if (cursor.Next('@')) cursor.Name('@', "the module's name");
    if (cursor.Take("attributes")) cursor.SkipBalanced('{', '}');
    cursor.Expect("{");
  }
  std::vector<Function> functions;
  auto find = [&](const std::string& symbol) {
    const auto found = std::ranges::find(functions, symbol, &Function::symbol);
    return found == functions.end() ? -1 : static_cast<int>(found - functions.begin());
  };
  do {
    Function function = ParseFunction(cursor);
    if (find(function.symbol) >= 0) cursor.Fail(Cat("@", function.symbol, " is defined twice"));
    functions.push_back(std::move(function));
  } while (!(module ? cursor.Take("}") : cursor.AtEnd()));
  if (!cursor.AtEnd()) cursor.Fail("expected nothing more");
  if (functions[0].results.empty()) {
    throw Error(Cat("StableHLO text: @", functions[0].symbol, " returns nothing"));
  }
  for (Function& function : functions) {
    for (Function::Reference& reference : function.references) {
      reference.function = find(reference.symbol);
    }
    if (!function.calling) continue;
    function.calling->function = find(function.calling->symbol);
    if (function.calling->function < 0) function.calling.reset();
  }
  return functions;
}

/// Writes the first function in the requested form, and all functions that it needs.
FunctionText Write(const std::vector<Function>& functions, FunctionForm form) {
  FunctionText result;
  std::vector<int> needed, places(functions.size(), -1);
  auto place = [&](int function) {
    const auto& calling = functions[function].calling;
    if (calling && form == FunctionForm::kCalling) function = calling->function;
    if (places[function] < 0) {
      places[function] = static_cast<int>(needed.size());
      needed.push_back(function);
      result.symbols.push_back(functions[function].symbol);
    }
    return places[function];
  };
  place(0);
  for (size_t i = 0; i < needed.size(); ++i) {
    const Function& function = functions[needed[i]];
    result.pieces.push_back({"  func.func private ", static_cast<int>(i)});
    std::string pending = Signature(function);
    if (function.calling && form == FunctionForm::kBoth) {
      result.pieces.push_back({Cat(std::exchange(pending, {}), "attributes {", kCallingForm, " = "),
                               place(function.calling->function)});
      pending = "} ";
    }
    size_t done = 0;
    for (const Function::Reference& reference : function.references) {
      if (reference.function < 0) continue;
      pending += function.body.substr(done, reference.at - done);
      result.pieces.push_back({std::exchange(pending, {}), place(reference.function)});
      done = reference.at + 1 + reference.symbol.size();
    }
    result.pieces.push_back({Cat(pending, function.body.substr(done), "\n"), -1});
  }
  result.arguments = functions[needed[0]].arguments;
  result.results = functions[needed[0]].results;
  return result;
}

}  // namespace

FunctionText ParseFunctions(std::string_view text, FunctionForm form) {
  return Write(Parse(text), form);
}

std::string JoinForms(std::string_view plain, std::string_view calling) {
  if (plain == calling) return std::string(plain);
  std::vector<Function> functions = Parse(plain);
  const auto first = static_cast<int>(functions.size());
  functions[0].calling = Function::Reference{0, "", first};
  for (Function& function : Parse(calling)) {
    function.symbol += "_calling";
    for (Function::Reference& reference : function.references) {
      if (reference.function >= 0) reference.function += first;
    }
    functions.push_back(std::move(function));
  }
  const FunctionText joined = Write(functions, FunctionForm::kBoth);
  std::string text = "module {\n";
  for (const FunctionText::Piece& piece : joined.pieces) {
    text += piece.text;
    if (piece.symbol >= 0) text += Cat("@", joined.symbols[piece.symbol]);
  }
  return text + "}\n";
}

}  // namespace torch_xla::stablehlo
