// The gradient of a convolution's input as one product of matrices, whose columns are added up
// where they were taken from. To few channels oneDNN's own is up to six times slower.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_xla::lowering {

/// Whether it is faster: of w [O, C, kernel…] and dy [N, O, output…] in float, in one group.
bool PrefersFold(const at::Tensor& dy, const at::Tensor& w, at::IntArrayRef stride);

/// Writes the gradient of x [N, C, input…], contiguous, to `dx`; of one or two dimensions.
void FoldInputGradient(const at::Tensor& dy, const at::Tensor& w, const at::Tensor& dx,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation);

}  // namespace torch_xla::lowering
