// Computes elementwise operations on fewer dimensions. A kernel of XLA:CPU has a loop for each
// dimension, and only the innermost loop is vectorized. If that loop is short, as for small images,
// costly functions run several times slower than on the same elements in one dimension.
#pragma once

#include <span>
#include <string_view>

#include "stablehlo/builder.h"

namespace torch_xla::stablehlo {

/// Emits the operation on operands that have the dimensions of the result or rank 0. If the builder
/// joins dimensions (Builder::JoinDimensions) and the last dimension is short, it is joined with
/// the preceding dimensions along which the same operands vary.
Value Elementwise(std::string_view op, std::initializer_list<Value> operands, const Type& result,
                  std::string_view attributes = {});

/// The elements of `x` in the dimensions in which an elementwise operation computed them, for users
/// that accept any dimensions: the loops of a kernel are those of its result. Do not use it for
/// outputs that are written to a parameter: XLA copies a parameter that is read through a reshape
/// before it is written.
Value ComputedForm(Value x);

}  // namespace torch_xla::stablehlo
