// Work of a custom call on XLA's own threads. A library with a pool of its own would have twice as
// many threads as cores, and those of one pool would wait for those of the other.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>

#include "runtime/ffi_abi.h"

namespace torch_xla::cpu {

/// How many threads XLA runs the program on; 1 where it does not say.
int64_t FfiThreads(const runtime::pjrt::XLA_FFI_CallFrame& frame);

/// How many parts to cut `work` into for these threads: each of `least` at least, `most` of them at
/// most, and one at least. Less work is not worth another thread.
int64_t FfiParts(const runtime::pjrt::XLA_FFI_CallFrame& frame, int64_t work, int64_t least,
                 int64_t most = std::numeric_limits<int64_t>::max());

/// Calls task(0) … task(count - 1), each once, here and on XLA's threads as these become free, and
/// returns when all are done. Rethrows the first exception.
void RunOnFfiThreads(const runtime::pjrt::XLA_FFI_CallFrame& frame, int64_t count,
                     const std::function<void(int64_t)>& task);

}  // namespace torch_xla::cpu
