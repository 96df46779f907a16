// An error of a handler as a text, which XLA carries to where the program was run.
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace torch_xla::cpu {

/// The message of an error, marked with its class.
std::string ErrorText(const std::exception& error);

/// The error whose ErrorText() is in `message`, as it was thrown; null where there is none.
std::exception_ptr FindError(std::string_view message);

}  // namespace torch_xla::cpu
