// Arrays that running programs hand to functions of the user's program (xla::host_call). The
// handler only copies and queues them, so a program never waits for the interpreter.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "cpu/handlers.h"

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

/// Runs an operator of the user's program that has a CPU kernel alone, and writes its results. The
/// operands are its own. The program waits for it; what it throws fails the program.
using HostOperator = void (*)(int64_t id, const std::vector<at::Tensor>& operands,
                              const std::vector<at::Tensor>& results);
/// `release` lets go of the interpreter if this thread has it, and returns what `take` takes it
/// again with; null if it has not.
void SetHostOperator(HostOperator function, void* (*release)(), void (*take)(void* state));
/// While it lives, this thread, which waits for programs, leaves the interpreter to operators that
/// they call. PyTorch does not always let go of it. No mutex may be held at either end.
class WaitsForPrograms {
 public:
  WaitsForPrograms();
  WaitsForPrograms(const WaitsForPrograms&) = delete;
  WaitsForPrograms& operator=(const WaitsForPrograms&) = delete;
  ~WaitsForPrograms();

 private:
  void* state_;
};
/// A call of it: the operands, then its number.
inline constexpr const char* kHostOperatorTarget = "torch_xla.cpu_host_operator";
Work RunHostOperator;

}  // namespace torch_xla::cpu
