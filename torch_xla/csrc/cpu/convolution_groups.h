// Convolutions in groups of few channels, down to those of each channel by a kernel of its own:
// sums of planes (convolution_plane.h) times a weight, where there is too little for a product.
#pragma once

#include "cpu/convolution_columns.h"
#include "runtime/ffi_abi.h"

namespace torch_xla::cpu {

/// Writes the part of a convolution of floats in `groups`, of one or two dimensions, that is asked
/// for, on XLA's threads, where groups are so small; returns whether it has. It has not where
/// weights or their gradients are not finite: those by which ATen does not multiply padding would
/// be NaN. `bias` [O] may be null.
bool RunGroups(const ConvolutionProduct& call, int64_t groups,
               const runtime::pjrt::XLA_FFI_CallFrame& frame, const float* bias);

}  // namespace torch_xla::cpu
