// Devices that are not there: a plugin's compiler, without a chip.
//
// It is a PJRT function table like a plugin's own, so that clients, buffers and executables over it
// are the runtime's usual ones. Devices are those of a topology description; programs are compiled
// for it (PJRT_Compile); arrays have a type and sizes, and no values; an execution gives arrays of
// the program's results at once. Reading one is an error (FAILED_PRECONDITION).
#pragma once

#include <string>

#include "runtime/plugin_library.h"

namespace torch_xla::runtime {

/// An option of its clients, beside the plugin's: the only device that is the client's own, that of
/// one of several processes. Without it all are.
inline constexpr const char* kCompileOnlyRank = "torch_xla_rank";

/// `topology`: the plugin's own name of it ("v5e:2x2"; empty where options say all), whose options
/// are those of PJRT_Client_Create. One in a process: the C API leaves functions no room for more.
/// Throws Error where the plugin cannot compile without a device, or another topology is in use.
const PluginLibrary& CompileOnly(const PluginLibrary& compiler, const std::string& topology);

}  // namespace torch_xla::runtime
