// Turns a plugin's errors into PyTorch's exceptions.
#pragma once

#include <exception>
#include <string>

#include "runtime/client.h"
#include "tensor/events.h"

namespace torch_xla::tensor {

/// Returns torch.OutOfMemoryError if the plugin has no memory left, the original exception if a
/// custom call's handler threw it, and any other error unchanged. The first and the last get the
/// user's line that ran the program; the first also says what is in memory and what the program
/// needs.
std::exception_ptr AsTorchError(const runtime::Error& error, const Failed& failed = {});
std::exception_ptr AsTorchError(std::exception_ptr error, const Failed& failed = {});

/// Throws an error of another thread. Adds the holders of the memory to an out-of-memory error.
/// Must be called without locks.
[[noreturn]] void ThrowToUser(const std::exception_ptr& error);

}  // namespace torch_xla::tensor
