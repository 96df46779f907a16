// Every call that programs on the CPU make of this library.
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

/// Lets the client's programs make them, where it is a CPU's. A plugin without custom calls takes
/// none of them; compiling a program that has one tells so.
void RegisterCalls(runtime::Client& client);

}  // namespace torch_xla::cpu
