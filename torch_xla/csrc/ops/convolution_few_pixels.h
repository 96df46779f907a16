// A convolution and its gradients where all images together have few pixels, the last ones of a
// network: each weight is read or written once, in products of matrices whose other factor stays in
// the cache. oneDNN brings weights into blocks of its own and back, which takes longer.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "ops/convolution_library.h"
#include "runtime/ffi_abi.h"

namespace torch_xla::lowering {

/// Of x [N, C, input…], w [O, C, kernel…] and y [N, O, output…], contiguous, in one group.
struct FewPixels {
  ConvolutionPart part;
  const at::Tensor &x, &w, &y;
  at::IntArrayRef stride, padding, dilation;

  /// Whether it is faster so.
  bool IsPreferred() const;

  /// Writes y, or the gradient of x or of w, on XLA's threads. `bias` [O], of y alone, may be none.
  void Run(const runtime::pjrt::XLA_FFI_CallFrame& frame,
           const std::optional<at::Tensor>& bias) const;

 private:
  void Forward(const runtime::pjrt::XLA_FFI_CallFrame& frame,
               const std::optional<at::Tensor>& bias) const;
  void InputGradient(const runtime::pjrt::XLA_FFI_CallFrame& frame) const;
  void WeightGradient(const runtime::pjrt::XLA_FFI_CallFrame& frame) const;
};

}  // namespace torch_xla::lowering
