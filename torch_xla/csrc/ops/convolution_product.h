// A convolution and its gradients as products of matrices: its weights, and the columns of what
// each position of the output sees. oneDNN brings weights and maps into blocks of its own and back,
// and is asked by way of ATen: of few pixels, and of little work, that takes longer than the
// products.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "ops/convolution_library.h"
#include "runtime/ffi_abi.h"

namespace torch_xla::lowering {

/// Of x [N, C, input…], w [O, C, kernel…] and y [N, O, output…], contiguous, in one group.
struct ConvolutionProduct {
  ConvolutionPart part;
  const at::Tensor &x, &w, &y;
  at::IntArrayRef stride, padding, dilation;
};

/// Writes y, or the gradient of x or of w, on XLA's threads, where that is faster so; returns
/// whether it is. `bias` [O], of y alone, may be none.
bool RunProducts(const ConvolutionProduct& call, const runtime::pjrt::XLA_FFI_CallFrame& frame,
                 const std::optional<at::Tensor>& bias);

}  // namespace torch_xla::lowering
