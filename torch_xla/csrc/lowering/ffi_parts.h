// Work that is cut into parts, each on a thread of XLA's.
#pragma once

#include "lowering/ffi_tensor.h"
#include "runtime/ffi_threads.h"

namespace torch_xla::lowering {

/// Calls work(part, begin, end) for parts of `count` things, each of `cost` multiplications, copies
/// or the like, of which a part has `least` at least. Returns how many.
template <typename Work>
int64_t InParts(const runtime::pjrt::XLA_FFI_CallFrame& frame, int64_t count, int64_t cost,
                int64_t least, Work work) {
  const int64_t parts = runtime::FfiParts(frame, count * cost, least, count);
  runtime::RunOnFfiThreads(frame, parts, [&](int64_t part) {
    const DefaultFloatEnvironment environment;
    work(part, count * part / parts, count * (part + 1) / parts);
  });
  return parts;
}

}  // namespace torch_xla::lowering
