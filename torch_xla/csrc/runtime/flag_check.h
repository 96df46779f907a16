// XLA ends the process where it does not understand XLA_FLAGS.
#pragma once

#include <functional>

namespace torch_xla::runtime {

/// Throws InvalidArgument where XLA_FLAGS is set and XLA would end the process over it.
///
/// XLA itself is asked, so that nothing it takes is refused: a child process calls `start`, which
/// reads the flags. What else may go wrong there is left for the caller to meet.
void CheckXlaFlags(const std::function<void()>& start);

}  // namespace torch_xla::runtime
