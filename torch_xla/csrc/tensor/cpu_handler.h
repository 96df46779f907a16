// How a handler of custom calls in programs on the CPU becomes known.
#pragma once

#include "cpu/ffi_handler.h"
#include "tensor/device.h"

namespace torch_xla::lazy {

/// Lets programs call `kHandler` as `kTarget` once there is a client. For static initialization.
/// A plugin without custom calls takes none of them, nor kernels of the CPU
/// (lowering/cpu_kernel.h); compiling a program that has one tells so.
template <const auto& kTarget, auto kHandler>
bool RegisterWithClient() {
  OnClientCreated(
      [](runtime::Client& client) { cpu::RegisterCpuHandler(client, kTarget, kHandler); });
  return true;
}

}  // namespace torch_xla::lazy
