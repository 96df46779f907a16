// Makers of runtime::Error, so that every message has one form:
// "<what failed> (<CODE>): <reason>".
#pragma once

#include <string>
#include <string_view>

#include "runtime/client.h"
#include "runtime/pjrt_abi.h"

namespace torch_xla::runtime {

/// "INVALID_ARGUMENT" for 3, ….
std::string_view ErrorCodeName(int code);

Error MakeError(pjrt::PJRT_Error_Code code, std::string_view what, std::string_view reason);

/// For requests that are refused before they reach the plugin.
Error InvalidArgument(const std::string& message);

}  // namespace torch_xla::runtime
