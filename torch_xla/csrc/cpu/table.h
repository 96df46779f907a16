// The table of all calls that programs on the CPU make.
#pragma once

#include <span>

#include "runtime/client.h"
#include "runtime/ffi_abi.h"

namespace torch_xla::cpu {

struct Call {
  const char* target;
  runtime::pjrt::XLA_FFI_Error* (*handler)(runtime::pjrt::XLA_FFI_CallFrame*);
};

std::span<const Call> Calls();

/// Registers the calls with a client of the CPU. A plugin without custom calls takes none of them;
/// then the compilation of a program with such a call fails.
void RegisterCalls(runtime::Client& client);

}  // namespace torch_xla::cpu
