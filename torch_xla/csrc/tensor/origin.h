// The origin of a program's run: the call that caused it, and the user's line of the call.
#pragma once

#include <string>

#include "ir/source.h"

namespace torch_xla::tensor {

struct Origin {
  const char* cause = nullptr;   // "torch_xla.sync()"; a string literal
  const char* detail = nullptr;  // the operation that ran on the CPU
  const ir::SourceLocation* location = nullptr;

  /// "torch_xla.sync() at train.py:12"
  std::string ToString() const;
};

/// While it lives, cuts on this thread have this cause; the outermost scope wins. The strings must
/// live for ever.
class CauseScope {
 public:
  explicit CauseScope(const char* cause, const char* detail = nullptr);
  ~CauseScope();
  CauseScope(const CauseScope&) = delete;
  CauseScope& operator=(const CauseScope&) = delete;

 private:
  const bool outermost_;
};

/// The origin of a cut by the calling thread now. Must not be called under a lock that a thread
/// with the GIL may wait for.
Origin CurrentOrigin();

/// A function that names what reads a tensor where no scope does ("print"), or returns null. Set by
/// the bindings.
using ReaderFunction = const char* (*)();
void SetReaderFunction(ReaderFunction function);

}  // namespace torch_xla::tensor
