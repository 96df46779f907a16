// How many devices the CPU platform has.
#pragma once

#include <cstdint>

namespace torch_xla::runtime {

/// CPU_NUM_DEVICES, 1 where it is not set; throws std::invalid_argument where it is none
/// from 1 to 128.
int64_t CpuDeviceCount();

}  // namespace torch_xla::runtime
