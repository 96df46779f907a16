// Custom calls that a plugin's partitioner cannot take apart by itself: the callbacks by which it
// asks how.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/client.h"

namespace torch_xla::runtime {

/// A custom call in a program over several devices.
struct PartitionedCall {
  std::string_view config;                     // its backend_config
  std::vector<std::vector<int64_t>> operands;  // the dimensions of the whole arrays
  OutputSharding result;                       // how the first result will lie
};

/// What each device computes instead.
struct CallOnDevice {
  std::string module;  // StableHLO, on the device's parts of the operands
  std::vector<OutputSharding> operands, results;
};

/// May be called on any thread.
using PartitionCall = CallOnDevice (*)(const PartitionedCall& call);

/// Registers how calls of the target `name` are partitioned. Shardy then spreads shardings over
/// them by their sdy.sharding_rule. Returns false if the plugin has no such extension.
bool RegisterPartitioner(Client& client, std::string_view name, PartitionCall partition);

}  // namespace torch_xla::runtime
