// Whether what an operation writes is what it reads: the CPU's kernels refuse that where they
// would read what they have written already.
#pragma once

#include <ATen/core/Tensor.h>

#include "aten/tensor_impl.h"

namespace torch_xla::aten {

/// As at::get_overlap_status has it of the tensors in memory; what it finds too hard is none.
enum class Overlap { kNone, kPartial, kFull };
Overlap OverlapOf(const XLATensorImpl& a, const XLATensorImpl& b);

[[noreturn]] void ThrowOverlap();

/// Throws where `written` shares memory with `read`, if that is on the device.
void CheckNoOverlap(const at::Tensor& written, const at::Tensor& read);
/// The same, but both may be all of the same.
void CheckNoPartialOverlap(const at::Tensor& written, const at::Tensor& read);

}  // namespace torch_xla::aten
