// Virtual devices: a plugin's compiler without hardware.
//
// It is a PJRT function table like a plugin's own, so the runtime's clients, buffers and
// executables work over it unchanged. The devices are those of a topology description, and programs
// are compiled for it (PJRT_Compile). Arrays have a type and sizes but no values; an execution
// returns arrays of the result types at once. Reading an array is an error (FAILED_PRECONDITION).
#pragma once

#include <string>

#include "runtime/plugin_library.h"

namespace torch_xla::runtime {

/// An option of its clients in addition to the plugin's: the rank of this process, whose device is
/// then the only one that the client owns. Without it the client owns all devices.
inline constexpr const char* kCompileOnlyRank = "torch_xla_rank";

/// `topology` is the plugin's name of the topology ("v5e:2x2"; empty if the options describe it).
/// The plugin's topology options are passed as the options of PJRT_Client_Create. A process can use
/// only one topology, since functions of the C API have no state argument. Throws Error if the
/// plugin cannot compile without a device, or if another topology is in use.
const PluginLibrary& CompileOnly(const PluginLibrary& compiler, const std::string& topology);

}  // namespace torch_xla::runtime
