// A convolution and its gradients as products of matrices: its weights, and the columns of what
// each position of the output sees. oneDNN brings weights and maps into blocks of its own and back,
// and is asked by way of ATen: of few pixels, and of little work, that takes longer than the
// products.
#pragma once

#include "cpu/convolution_columns.h"
#include "runtime/ffi_abi.h"

namespace torch_xla::cpu {

/// Writes y, or the gradient of x or of w, of one group, on XLA's threads, where that is faster so;
/// returns whether it is. `bias` [O], of y alone, may be null.
bool RunProducts(const ConvolutionProduct& call, const runtime::pjrt::XLA_FFI_CallFrame& frame,
                 const float* bias);

}  // namespace torch_xla::cpu
