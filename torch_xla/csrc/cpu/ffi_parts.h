// Work that is cut into parts, each on a thread of XLA's.
#pragma once

#include "cpu/ffi_tensor.h"
#include "cpu/ffi_threads.h"

namespace torch_xla::cpu {

/// Calls work(part, begin, end) for each of `parts` parts of `count` things.
template <typename Work>
void RunParts(const runtime::pjrt::XLA_FFI_CallFrame& frame, int64_t parts, int64_t count,
              const Work& work) {
  cpu::RunOnFfiThreads(frame, parts, [&](int64_t part) {
    const DefaultFloatEnvironment environment;
    work(part, count * part / parts, count * (part + 1) / parts);
  });
}

/// The same for as many parts as are worth it where each thing is `cost` multiplications, copies or
/// the like, and a part has `least` of these at least. Returns how many.
template <typename Work>
int64_t InParts(const runtime::pjrt::XLA_FFI_CallFrame& frame, int64_t count, int64_t cost,
                int64_t least, const Work& work) {
  const int64_t parts = cpu::FfiParts(frame, count * cost, least, count);
  RunParts(frame, parts, count, work);
  return parts;
}

}  // namespace torch_xla::cpu
