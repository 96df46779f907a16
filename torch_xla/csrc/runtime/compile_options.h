// Encodes XLA's CompileOptionsProto by hand, since it is the only message that this runtime sends.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/client.h"

namespace torch_xla::runtime {

/// `device_ids` are the plugin's global ids of the devices of an unpartitioned program's replicas,
/// or of the partitions. Without them the program gets the plugin's default assignment. `shardy`
/// says that Shardy partitions the program.
std::string EncodeCompileOptions(const CompileOptions& options, std::span<const int64_t> device_ids,
                                 bool shardy = false);

}  // namespace torch_xla::runtime
