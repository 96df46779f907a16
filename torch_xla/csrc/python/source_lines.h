// Finds the line of the user's program that the calling thread is at.
#pragma once

#include <string>

#include "ir/source.h"

namespace torch_xla::python {

/// The innermost line outside PyTorch and torch_xla, or else the innermost line. In a backward
/// pass, which has no Python frame, the line whose derivative is computed. Null outside Python.
///
/// Called for every traced node. It reads this thread's interpreter frames without the GIL (which
/// tracing has released), takes no references, and looks up an instruction by its address. Only an
/// instruction that was not seen before takes the GIL.
const ir::SourceLocation* UserLocation();

/// Names the module whose forward this thread runs, for the locations that are kept with their
/// callers; empty: none. It is the outermost caller (ModuleOf).
void SetModule(const std::string& name);
/// The module that a location lies in; null if none was set.
const std::string* ModuleOf(const ir::SourceLocation* location);

/// "print(tensor)" if PyTorch's printing is the caller; else null.
const char* Reader();

/// Finds the folders of PyTorch and torch_xla. This imports modules, so it must not be called in
/// the middle of tracing.
void PrepareUserLocation();

}  // namespace torch_xla::python
