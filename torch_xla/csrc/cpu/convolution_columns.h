// A convolution as a product of matrices: for each pixel of the output, a column of its inputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "cpu/convolution_call.h"
#include "cpu/convolution_plane.h"

namespace torch_xla::cpu {

/// x [N, C, input…], w [O, C / groups, kernel…] and y [N, O, output…] are contiguous and float.
struct ConvolutionProduct {
  ConvolutionPart part;
  const at::Tensor &x, &w, &y;
  at::IntArrayRef stride, padding, dilation;
};

/// The geometry of a convolution with one group and one or two dimensions.
struct Columns {
  Axis rows, row;

  /// From the sizes of x [N, C, input…], w [O, C, kernel…] and y [N, O, output…].
  Columns(at::IntArrayRef x, at::IntArrayRef w, at::IntArrayRef y, at::IntArrayRef stride,
          at::IntArrayRef padding, at::IntArrayRef dilation);

  int64_t inputs() const { return rows.input * row.input; }
  int64_t outputs() const { return rows.output * row.output; }
  /// Whether each pixel of the output depends only on the input pixel at the same position.
  bool is_same() const;
  int64_t taps() const { return rows.kernel * row.kernel; }

  /// Writes the columns [channels * taps, outputs] of an image [channels, inputs]. The rows of the
  /// columns are `stride` floats apart.
  void Unfold(const float* image, int64_t channels, float* columns, int64_t stride) const;
  /// Writes the gradient of an image, given the gradient of its columns.
  void Fold(const float* columns, int64_t stride, float* image, int64_t channels) const;
};

}  // namespace torch_xla::cpu
