// A plugin's failures as the exceptions that PyTorch's users know.
#pragma once

#include <exception>
#include <string>

#include "lazy/origin.h"
#include "runtime/client.h"

namespace torch_xla::lazy {

/// The message of an error, marked with its class: what a custom call's handler gives to XLA,
/// and AsTorchError finds in the failure of the execution.
std::string ErrorText(const std::exception& error);

/// torch.OutOfMemoryError for a plugin that has no memory left, an error of a custom call's
/// handler as it was there, any other as it is.
/// The first and the last with the line of the user's that ran the program, the first with what is
/// in memory.
std::exception_ptr AsTorchError(const runtime::Error& error, const Origin& origin = {});
std::exception_ptr AsTorchError(std::exception_ptr error, const Origin& origin = {});

}  // namespace torch_xla::lazy
