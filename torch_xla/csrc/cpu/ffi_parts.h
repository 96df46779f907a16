// Loops over things of equal cost that are cut into parts, each on one of XLA's threads.
#pragma once

#include "cpu/choices.h"
#include "cpu/ffi_tensor.h"
#include "cpu/ffi_threads.h"

namespace torch_xla::cpu {

/// Calls work(part, begin, end) for each of `parts` parts of `count` things, with PyTorch's mode of
/// rounding and denormals.
template <typename Work>
void RunParts(const runtime::pjrt::XLA_FFI_CallFrame& frame, int64_t parts, int64_t count,
              const Work& work) {
  RunOnFfiThreads(frame, parts, [&](int64_t part) {
    const DefaultFloatEnvironment environment;
    work(part, count * part / parts, count * (part + 1) / parts);
  });
}

/// The same as work(begin, end), with as many parts as FfiParts() says for things that each cost
/// `cost` picoseconds.
template <typename Work>
void InParts(const runtime::pjrt::XLA_FFI_CallFrame& frame, int64_t count, int64_t cost,
             const Work& work) {
  RunParts(frame, FfiParts(frame, count * cost, count), count,
           [&](int64_t, int64_t begin, int64_t end) { work(begin, end); });
}

}  // namespace torch_xla::cpu
