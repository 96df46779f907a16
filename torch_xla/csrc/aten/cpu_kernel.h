// Operators that PyTorch's CPU kernels compute inside a program; see lowering/cpu_kernel.h.
#pragma once

namespace torch_xla::aten {

/// Whether the device's programs can call CPU kernels. Where they cannot, an operator that
/// has no other lowering takes the fallback.
bool UseCpuKernels();

}  // namespace torch_xla::aten
