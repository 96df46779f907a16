// The position in the user's Python program where a node was traced. Tracing takes two words; the
// line is found when somebody asks. This file does not depend on Python: the bindings fill it in
// (python/source_lines.cpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace torch_xla::ir {

/// A function of the user's program; never freed.
struct SourceCode {
  std::string file, function;
  struct Range {
    uint32_t begin;  // an offset; the range ends where the next one begins
    int line;        // 0: none
  };
  std::vector<Range> lines;
  bool users = true;  // neither PyTorch's code nor torch_xla's

  int LineAt(uint32_t offset) const;
};

/// An instruction in a function; never freed. Interned: equal locations are the same object.
struct SourceLocation {
  const SourceCode* code;
  uint32_t offset = 0;
  bool backward = false;  // traced by the derivative of the code there
  // With XLA_IR_DEBUG=1: programs contain the location, so they change when lines move. `caller` is
  // the location of the call.
  bool in_programs = false;
  const SourceLocation* caller = nullptr;

  int line() const { return code->LineAt(offset); }
  /// "train.py:12", with " (backward)" appended if `backward` is set.
  std::string ToString() const;
};

/// The calling thread's position in the user's Python program; null outside of it. The function
/// that finds it is set by the bindings.
const SourceLocation* CurrentLocation();
using LocationFunction = const SourceLocation* (*)();
void SetLocationFunction(LocationFunction function);

/// The file and the line of `location`, or "an unknown line" for null.
std::string LineOf(const SourceLocation* location);

}  // namespace torch_xla::ir
