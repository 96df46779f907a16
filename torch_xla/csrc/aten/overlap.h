// Detects operations that write memory that they also read. The CPU's kernels refuse them if they
// would read elements that they have already written.
#pragma once

#include <ATen/core/Tensor.h>

#include "aten/tensor_impl.h"

namespace torch_xla::aten {

/// The same classes as at::get_overlap_status; cases that it finds too hard count as kNone.
enum class Overlap { kNone, kPartial, kFull };
Overlap OverlapOf(const XLATensorImpl& a, const XLATensorImpl& b);

[[noreturn]] void ThrowOverlap();

/// Throws if `written` shares memory with `read` on the device.
void CheckNoOverlap(const at::Tensor& written, const at::Tensor& read);
/// The same, but allows both to be exactly the same memory.
void CheckNoPartialOverlap(const at::Tensor& written, const at::Tensor& read);

}  // namespace torch_xla::aten
