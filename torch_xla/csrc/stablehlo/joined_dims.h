// Elementwise ops on fewer dimensions. XLA:CPU has a loop for each dimension of a kernel, and only
// the innermost takes vectors: where that is short, as an image's of 14 pixels, a sigmoid takes
// eight times as long as on the same elements in one dimension.
#pragma once

#include <span>
#include <string_view>

#include "stablehlo/builder.h"

namespace torch_xla::stablehlo {

/// The op on operands of the result's dimensions, or of rank 0. Where the builder joins dimensions
/// (Builder::JoinDimensions) and the last is short, it is joined with those before it along which
/// the same operands vary.
Value Elementwise(std::string_view op, std::initializer_list<Value> operands, const Type& result,
                  std::string_view attributes = {});

/// The same elements in the dimensions that an elementwise op made them in, for what does not mind:
/// the last loop of a kernel is that of its result. (Not for outputs that are written to a
/// parameter: XLA copies what is read through a reshape before it is written.)
Value ComputedForm(Value x);

}  // namespace torch_xla::stablehlo
