// A convolution and its gradients as a call from the program on the device's memory: by products,
// tiles or planes of ours where these are faster, else by ATen's kernels (oneDNN). Table
// lowering/kernel_table.inc says where.
#pragma once

#include <optional>

#include "cpu/convolution.h"
#include "lowering/context.h"

namespace torch_xla::lowering {

using cpu::ConvolutionPart;

/// Of a convolution from x [N, C, input…] by w [O, C / groups, kernel…] to y [N, O, output…].
struct ConvolutionCall {
  ConvolutionPart part;
  Dims stride, padding, dilation;
  int64_t groups;
  Dims result;
};

/// (x, w) -> y; (y's gradient, w) -> x's; (x, y's gradient) -> w's. Of one element type, float or
/// bfloat16, not empty. `bias` [O], of y alone, may be none.
Value CallConvolution(Value lhs, Value rhs, std::optional<Value> bias, const ConvolutionCall& call);

}  // namespace torch_xla::lowering
