// The line of the user's program that the calling thread is at.
#pragma once

#include "ir/source.h"

namespace torch_xla::python {

/// The innermost line that is not PyTorch's or ours, else the innermost one; in a backward pass,
/// which has no Python frame, the line whose derivative is computed; null outside Python.
///
/// Called for every traced node: it reads the interpreter's frames of this thread without the
/// interpreter's lock (which tracing has let go of), takes no reference, and looks an instruction
/// up by its address. Only one that was not seen before takes the lock.
const ir::SourceLocation* UserLocation();

/// "print(tensor)" where PyTorch's printing is what calls; else null.
const char* Reader();

/// Finds out which folders are PyTorch's and ours, which imports modules: not in the midst of
/// tracing.
void PrepareUserLocation();

}  // namespace torch_xla::python
