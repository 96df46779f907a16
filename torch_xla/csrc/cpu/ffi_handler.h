// The frame of every handler of a custom call: stages, errors, registration.
#pragma once

#include <string>

#include "cpu/error_text.h"
#include "cpu/ffi_tensor.h"
#include "runtime/client.h"
#include "runtime/errors.h"
#include "runtime/ffi_abi.h"
#include "runtime/platform.h"

namespace torch_xla::cpu {

/// Whether the handler has to do its work now. XLA also calls it in the stages before, and once for
/// its metadata, which this function answers.
inline bool EntersExecution(runtime::pjrt::XLA_FFI_CallFrame* frame) {
  using namespace runtime::pjrt;
  for (auto* extension = frame->extension_start; extension; extension = extension->next) {
    if (extension->type != XLA_FFI_Extension_Metadata) continue;
    auto* metadata = reinterpret_cast<XLA_FFI_Metadata_Extension*>(extension)->metadata;
    metadata->api_version.major_version = frame->api->api_version.major_version;
    metadata->api_version.minor_version = frame->api->api_version.minor_version;
    metadata->traits = 0;
    return false;
  }
  return frame->stage == XLA_FFI_ExecutionStage_EXECUTE;
}

/// The value that a handler returns to fail the execution.
inline runtime::pjrt::XLA_FFI_Error* FfiError(runtime::pjrt::XLA_FFI_CallFrame* frame,
                                              runtime::pjrt::PJRT_Error_Code code,
                                              const std::string& message) {
  using namespace runtime::pjrt;
  XLA_FFI_Error_Create_Args args{};
  args.struct_size = kStructSize<XLA_FFI_Error_Create_Args>;
  args.message = message.c_str();
  args.errc = code;
  return frame->api->XLA_FFI_Error_Create(&args);
}

/// The handler that runs `kWork` on XLA's threads. An exception of `kWork` fails the execution with
/// the code `kCode`.
template <auto kWork,
          runtime::pjrt::PJRT_Error_Code kCode = runtime::pjrt::PJRT_Error_Code_INVALID_ARGUMENT>
runtime::pjrt::XLA_FFI_Error* Handler(runtime::pjrt::XLA_FFI_CallFrame* frame) {
  if (!EntersExecution(frame)) return nullptr;
  try {
    const OperandDims dims(*frame);
    kWork(*frame);
    return nullptr;
  } catch (const std::exception& error) {
    return FfiError(frame, kCode, ErrorText(error));
  }
}

/// Lets programs on the CPU call `handler` as `target`. Returns false on other platforms, whose
/// memory the handler could not read, and if the plugin has no custom calls.
inline bool RegisterCpuHandler(
    runtime::Client& client, const char* target,
    runtime::pjrt::XLA_FFI_Error* (*handler)(runtime::pjrt::XLA_FFI_CallFrame*)) {
  if (!runtime::IsHost(client.platform())) return false;
  try {
    client.RegisterCustomCall(target, reinterpret_cast<void*>(handler));
    return true;
  } catch (const runtime::Error&) {
    return false;
  }
}

}  // namespace torch_xla::cpu
