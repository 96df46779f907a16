// What made a program run: which call, and the user's line of it.
#pragma once

#include <string>

#include "ir/source.h"

namespace torch_xla::lazy {

struct Origin {
  const char* cause = nullptr;   // "torch_xla.sync()"; lives for ever
  const char* detail = nullptr;  // the operation that ran on the CPU
  const ir::SourceLocation* location = nullptr;

  /// "torch_xla.sync() at train.py:12"
  std::string ToString() const;
};

/// While it lives, what this thread cuts is for that; of several the outermost says it. The strings
/// must live for ever.
class CauseScope {
 public:
  explicit CauseScope(const char* cause, const char* detail = nullptr);
  ~CauseScope();
  CauseScope(const CauseScope&) = delete;
  CauseScope& operator=(const CauseScope&) = delete;

 private:
  const bool outermost_;
};

/// Of what the calling thread cuts now. Not under a lock that a thread with Python's may wait for.
Origin CurrentOrigin();

/// Says what reads a tensor where no scope does ("print"); null: not known. Set by the bindings.
using ReaderFunction = const char* (*)();
void SetReaderFunction(ReaderFunction function);

}  // namespace torch_xla::lazy
