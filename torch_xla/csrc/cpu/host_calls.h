// Arrays that running programs hand to functions of the user's program (xla::host_call). The
// handler only copies and queues them, so a program never waits for the interpreter.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace torch_xla::cpu {

struct HostCall {
  int64_t id;  // the number of the function
  std::vector<at::Tensor> arrays;
};

/// Waits for the next call, and returns it; nothing once StopHostCalls() was called and all calls
/// were taken. Thread-safe.
std::optional<HostCall> NextHostCall();
/// Ends the waiting.
void StopHostCalls();
/// How many calls were queued since the process began.
int64_t NumHostCalls();

}  // namespace torch_xla::cpu
