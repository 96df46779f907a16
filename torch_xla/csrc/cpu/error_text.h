// Errors of handlers as text, which XLA carries to the caller of the program.
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace torch_xla::cpu {

/// The message of an error, marked with its class.
std::string ErrorText(const std::exception& error);

/// The error whose ErrorText() is contained in `message`; null if it contains none.
std::exception_ptr FindError(std::string_view message);

}  // namespace torch_xla::cpu
