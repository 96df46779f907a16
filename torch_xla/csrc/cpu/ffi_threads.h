// The work of a custom call on XLA's own threads. A library with a thread pool of its own would
// have twice as many threads as there are cores, and the threads of one pool would wait for those
// of the other.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>

#include "runtime/ffi_abi.h"

namespace torch_xla::cpu {

/// How many threads XLA runs the program on; 1 if the plugin does not say.
int64_t FfiThreads(const runtime::pjrt::XLA_FFI_CallFrame& frame);

/// Into how many parts, 1 to `most`, work of `cost` picoseconds (choices.h) is cut at most so that
/// each part is worth a thread. The number does not depend on the machine, so use it where the
/// result depends on the cuts: the sum of the sums of parts.
int64_t PartsWorthAThread(int64_t cost, int64_t most);

/// The same, but no more parts than threads: for results that do not depend on the cuts.
int64_t FfiParts(const runtime::pjrt::XLA_FFI_CallFrame& frame, int64_t cost,
                 int64_t most = std::numeric_limits<int64_t>::max());

/// Calls task(0) … task(count - 1), each once, on this thread and on XLA's threads as they become
/// free. Returns when all calls have returned, and rethrows the first exception.
void RunOnFfiThreads(const runtime::pjrt::XLA_FFI_CallFrame& frame, int64_t count,
                     const std::function<void(int64_t)>& task);

}  // namespace torch_xla::cpu
