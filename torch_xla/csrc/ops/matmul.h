// Products of matrices: calls of a few rows, which other lowerings make too, and StableHLO's
// dot_general on tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// Whether the processor has instructions for products of that element type, besides float's.
bool MultipliesNatively(ElementType element);

/// Whether there is a product of a few rows of that element type.
inline bool HasFewRows(ElementType element) {
  return element == ElementType::kF32 || element == ElementType::kBF16;
}

/// rows [*, m, k] times weights [*, n, k], transposed, or, by columns, [*, k, n]: [*, m, n] of
/// float. Both are of f32 or of bf16.
Value CallFewRows(Value rows, Value weights, bool by_columns = false);

}  // namespace torch_xla::lowering

namespace torch_xla::aten {

/// The products of `a` and `b` summed over some dimensions of each, which no reshape brings next
/// to each other: that would lose how the others lie on the devices. The dimensions of `a`, then
/// of `b`, that are left.
at::Tensor DotGeneral(const at::Tensor& a, const at::Tensor& b, const std::vector<int64_t>& a_dims,
                      const std::vector<int64_t>& b_dims);

}  // namespace torch_xla::aten
