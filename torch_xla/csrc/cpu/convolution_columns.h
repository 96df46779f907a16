// A convolution as a product of matrices: the columns of what each position of its output sees.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "cpu/convolution_call.h"
#include "cpu/convolution_plane.h"

namespace torch_xla::cpu {

/// Of floats x [N, C, input…], w [O, C / groups, kernel…] and y [N, O, output…], contiguous.
struct ConvolutionProduct {
  ConvolutionPart part;
  const at::Tensor &x, &w, &y;
  at::IntArrayRef stride, padding, dilation;
};

/// Of a convolution in one group, of one or two dimensions.
struct Columns {
  Axis rows, row;

  /// Of x [N, C, input…], w [O, C, kernel…] and y [N, O, output…].
  Columns(at::IntArrayRef x, at::IntArrayRef w, at::IntArrayRef y, at::IntArrayRef stride,
          at::IntArrayRef padding, at::IntArrayRef dilation);

  int64_t inputs() const { return rows.input * row.input; }
  int64_t outputs() const { return rows.output * row.output; }
  /// Whether an output sees the input of its place, and no other.
  bool is_same() const;
  int64_t taps() const { return rows.kernel * row.kernel; }

  /// Writes columns [channels * taps, outputs], whose rows are `stride` apart, of an image
  /// [channels, inputs].
  void Unfold(const float* image, int64_t channels, float* columns, int64_t stride) const;
  /// Writes the image of which such columns are the gradients.
  void Fold(const float* columns, int64_t stride, float* image, int64_t channels) const;
};

}  // namespace torch_xla::cpu
