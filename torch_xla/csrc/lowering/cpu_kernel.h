// An operator inside a program that is computed by PyTorch's own CPU kernel: one custom call,
// whose handler (aten/cpu_kernel.cpp) calls the dispatcher on the device's memory. For what
// XLA cannot express or not well (LAPACK); only where the device is the host.
#pragma once

#include <string>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// Target of the custom call.
inline constexpr const char* kCpuKernelTarget = "torch_xla.cpu_kernel";

/// The results of the node being lowered, by the CPU kernel of its operator.
std::vector<Value> CpuKernel(LoweringContext& cx);

}  // namespace torch_xla::lowering
