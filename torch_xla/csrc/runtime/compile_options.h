// XLA's CompileOptionsProto, written by hand: it is the only message this runtime sends.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/client.h"

namespace torch_xla::runtime {

/// `device_ids` are the plugin's global ids of the devices of the replicas of an unpartitioned
/// program; without them a program gets the plugin's default assignment.
std::string EncodeCompileOptions(const CompileOptions& options,
                                 std::span<const int64_t> device_ids);

}  // namespace torch_xla::runtime
