// Makes runtime::Error objects, whose messages all have the form "<what failed> (<CODE>):
// <reason>".
#pragma once

#include <string>
#include <string_view>

#include "runtime/client.h"
#include "runtime/pjrt_abi.h"

namespace torch_xla::runtime {

/// The name of an error code: "INVALID_ARGUMENT" for 3, ….
std::string_view ErrorCodeName(int code);

Error MakeError(pjrt::PJRT_Error_Code code, std::string_view what, std::string_view reason);

/// For requests that are refused before they reach the plugin.
Error InvalidArgument(const std::string& message);

}  // namespace torch_xla::runtime
