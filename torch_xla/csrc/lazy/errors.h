// A plugin's failures as the exceptions that PyTorch's users know.
#pragma once

#include <exception>
#include <string>

#include "runtime/client.h"

namespace torch_xla::lazy {

/// The message of an error, marked with its class: what a custom call's handler gives to XLA,
/// and AsTorchError finds in the failure of the execution.
std::string ErrorText(const std::exception& error);

/// torch.OutOfMemoryError for a plugin that has no memory left, an error of a custom call's
/// handler as it was there, any other as it is.
std::exception_ptr AsTorchError(const runtime::Error& error);
std::exception_ptr AsTorchError(std::exception_ptr error);

}  // namespace torch_xla::lazy
