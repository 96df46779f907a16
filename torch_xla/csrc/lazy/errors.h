// A plugin's failures as the exceptions that PyTorch's users know.
#pragma once

#include <exception>

#include "runtime/client.h"

namespace torch_xla::lazy {

/// torch.OutOfMemoryError for a plugin that has no memory left; any other as it is.
std::exception_ptr AsTorchError(const runtime::Error& error);
std::exception_ptr AsTorchError(std::exception_ptr error);

}  // namespace torch_xla::lazy
