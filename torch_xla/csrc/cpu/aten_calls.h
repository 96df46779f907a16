// Calls of ATen's kernels from a program: part after part of the work, on XLA's threads.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>

#include "cpu/choices.h"
#include "cpu/ffi_tensor.h"
#include "cpu/ffi_threads.h"

namespace torch_xla::cpu {

/// While an object of this class lives, the kernels that its thread calls use no other thread.
class OneThread {
 public:
  OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  ~OneThread();

 private:
  int threads_ = 0, mkl_threads_ = 0;
};

/// The state of a thread in which a program calls ATen's kernels.
struct AtenCalls {
  DefaultFloatEnvironment environment;
  OneThread one_thread;
  at::AutoDispatchBelowADInplaceOrView no_autograd;
};

/// One of several parts of a call's work.
struct AtenPart {
  int64_t index, count;

  /// The part's share of a tensor that is cut along `dim`; the whole tensor if `dim` is negative.
  at::Tensor operator()(const at::Tensor& tensor, int64_t dim = 0) const;
};

/// Calls work(AtenPart) for each of `count` parts.
template <typename Work>
void RunAtenParts(const runtime::pjrt::XLA_FFI_CallFrame& frame, int64_t count, const Work& work) {
  RunOnFfiThreads(frame, count, [&](int64_t index) {
    const AtenCalls calls;
    work(AtenPart{index, count});
  });
}

}  // namespace torch_xla::cpu
