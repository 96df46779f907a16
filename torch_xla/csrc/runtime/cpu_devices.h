// The number of devices of the CPU platform.
#pragma once

#include <cstdint>

namespace torch_xla::runtime {

/// CPU_NUM_DEVICES, or 1 if it is not set. Throws std::invalid_argument if it is no integer from 1
/// to 128.
int64_t CpuDeviceCount();

}  // namespace torch_xla::runtime
