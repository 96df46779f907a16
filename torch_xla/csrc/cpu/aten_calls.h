// What calls of ATen's kernels from a program need around them.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>

#include "cpu/ffi_tensor.h"

namespace torch_xla::cpu {

/// Kernels called while it lives take no other thread than this one: at::set_num_threads() would
/// change other threads too.
class OneThread {
 public:
  OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  ~OneThread();

 private:
  int threads_ = 0, mkl_threads_ = 0;
};

/// For each part of the work that one of XLA's threads does (ffi_threads.h).
struct AtenCalls {
  DefaultFloatEnvironment environment;
  OneThread one_thread;
  at::AutoDispatchBelowADInplaceOrView no_autograd;
};

/// The part number `index` of `count` of a tensor, cut along `dim`; all of it where that is
/// negative.
at::Tensor Part(const at::Tensor& tensor, int64_t dim, int64_t index, int64_t count);

}  // namespace torch_xla::cpu
