// What every handler of a custom call does beside its work.
#pragma once

#include <string>

#include "runtime/client.h"
#include "runtime/errors.h"
#include "runtime/ffi_abi.h"
#include "runtime/platform.h"

namespace torch_xla::runtime {

/// Whether the handler has to do its work now. XLA also calls it in the stages before, and
/// once for its metadata, which this answers.
inline bool EntersExecution(pjrt::XLA_FFI_CallFrame* frame) {
  using namespace pjrt;
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

/// The failure of an execution, as a handler returns it.
inline pjrt::XLA_FFI_Error* FfiError(pjrt::XLA_FFI_CallFrame* frame, pjrt::PJRT_Error_Code code,
                                     const std::string& message) {
  using namespace pjrt;
  XLA_FFI_Error_Create_Args args{};
  args.struct_size = kStructSize<XLA_FFI_Error_Create_Args>;
  args.message = message.c_str();
  args.errc = code;
  return frame->api->XLA_FFI_Error_Create(&args);
}

/// Lets programs on the CPU call `handler` as `target`. False for other platforms, whose memory it
/// could not read, and for a plugin without custom calls.
inline bool RegisterCpuHandler(Client& client, const char* target,
                               pjrt::XLA_FFI_Error* (*handler)(pjrt::XLA_FFI_CallFrame*)) {
  if (!IsHost(client.platform())) return false;
  try {
    client.RegisterCustomCall(target, reinterpret_cast<void*>(handler));
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace torch_xla::runtime
