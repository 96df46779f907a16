// A plugin's failures as the exceptions that PyTorch's users know.
#pragma once

#include <exception>
#include <string>

#include "runtime/client.h"
#include "tensor/events.h"

namespace torch_xla::lazy {

/// torch.OutOfMemoryError for a plugin that has no memory left, an error of a custom call's
/// handler as it was there, any other as it is.
/// The first and the last with the line of the user's that ran the program, the first with what is
/// in memory, and what the program needs.
std::exception_ptr AsTorchError(const runtime::Error& error, const Failed& failed = {});
std::exception_ptr AsTorchError(std::exception_ptr error, const Failed& failed = {});

/// Throws what failed earlier, on another thread: an out-of-memory error with what holds the memory
/// added. To be called without locks.
[[noreturn]] void ThrowToUser(const std::exception_ptr& error);

}  // namespace torch_xla::lazy
