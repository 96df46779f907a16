// Handlers of custom calls in programs on the CPU: what each needs around its work, and how it
// becomes known.
#pragma once

#include "lazy/device.h"
#include "lazy/errors.h"
#include "lowering/ffi_tensor.h"
#include "runtime/ffi_handler.h"

namespace torch_xla::lazy {

/// The handler that does `kWork`, on XLA's threads. What that throws fails the execution, by
/// `kCode`.
template <auto kWork,
          runtime::pjrt::PJRT_Error_Code kCode = runtime::pjrt::PJRT_Error_Code_INVALID_ARGUMENT>
runtime::pjrt::XLA_FFI_Error* CpuHandler(runtime::pjrt::XLA_FFI_CallFrame* frame) {
  if (!runtime::EntersExecution(frame)) return nullptr;
  try {
    const lowering::OperandDims dims(*frame);
    kWork(*frame);
    return nullptr;
  } catch (const std::exception& error) {
    return runtime::FfiError(frame, kCode, ErrorText(error));
  }
}

/// Lets programs call `kHandler` as `kTarget` once there is a client. For static initialization.
/// A plugin without custom calls takes none of them, nor kernels of the CPU
/// (lowering/cpu_kernel.h); compiling a program that has one tells so.
template <const auto& kTarget, auto kHandler>
bool RegisterWithClient() {
  OnClientCreated(
      [](runtime::Client& client) { runtime::RegisterCpuHandler(client, kTarget, kHandler); });
  return true;
}

}  // namespace torch_xla::lazy
