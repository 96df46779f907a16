// Where in the user's Python program a node was traced: two words that are taken at tracing, a line
// once somebody asks. Knows nothing of Python; the bindings fill it in (python/source_lines.cpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace torch_xla::ir {

/// A function of the program. Lives for ever.
struct SourceCode {
  std::string file, function;
  struct Range {
    uint32_t begin;  // an offset; it ends where the next one begins
    int line;        // 0: none
  };
  std::vector<Range> lines;
  bool users = true;  // neither PyTorch's nor ours

  int LineAt(uint32_t offset) const;
};

/// An instruction in it. Lives for ever, and there is one for each: equal ones are identical.
struct SourceLocation {
  const SourceCode* code;
  uint32_t offset = 0;
  bool backward = false;  // traced by the derivative of what is there
  // Under XLA_IR_DEBUG=1: programs name it, which makes them others when lines move; and what
  // called it.
  bool in_programs = false;
  const SourceLocation* caller = nullptr;

  int line() const { return code->LineAt(offset); }
  /// "train.py:12", with " (backward)" where that is so.
  std::string ToString() const;
};

/// Where in the user's Python program the calling thread is; null outside it. What is called for
/// that is set by the bindings.
const SourceLocation* CurrentLocation();
using LocationFunction = const SourceLocation* (*)();
void SetLocationFunction(LocationFunction function);

/// The file and the line of `location`, or "an unknown line" where it is null.
std::string LineOf(const SourceLocation* location);

}  // namespace torch_xla::ir
