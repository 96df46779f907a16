// XLA's CompileOptionsProto, written by hand: it is the only message this runtime sends.
#pragma once

#include <string>

#include "runtime/client.h"

namespace torch_xla::runtime {

/// `device_id` is the plugin's global id of the device of a one-replica, one-partition program;
/// programs over several devices get the plugin's default assignment.
std::string EncodeCompileOptions(const CompileOptions& options, int device_id);

}  // namespace torch_xla::runtime
