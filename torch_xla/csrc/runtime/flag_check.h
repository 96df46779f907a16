// Checks XLA_FLAGS, since XLA ends the process if it does not understand them.
#pragma once

#include <functional>

namespace torch_xla::runtime {

/// Throws InvalidArgument if XLA_FLAGS is set and XLA would end the process because of it.
///
/// XLA itself decides, so that every flag that it accepts is accepted here: a child process calls
/// `start`, which reads the flags. Other failures of `start` are left for the caller to meet.
void CheckXlaFlags(const std::function<void()>& start);

}  // namespace torch_xla::runtime
