// Matrix products for other lowerings: the call for a few rows; and StableHLO's dot_general on
// tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// Whether the processor has instructions for products of the element type (not float).
bool MultipliesNatively(ElementType element);

/// Whether CallFewRows() supports the element type.
inline bool HasFewRows(ElementType element) {
  return element == ElementType::kF32 || element == ElementType::kBF16;
}

/// Multiplies rows [*, m, k] by weights, which are [*, n, k], or [*, k, n] if `by_columns`. Both
/// are f32 or bf16; the result [*, m, n] is f32.
Value CallFewRows(Value rows, Value weights, bool by_columns = false);

}  // namespace torch_xla::lowering

namespace torch_xla::aten {

/// Multiplies `a` and `b` and sums over some dimensions of each. The result has the remaining
/// dimensions of `a`, then those of `b`. No dimensions are joined by a reshape, which would lose
/// how they are sharded.
at::Tensor DotGeneral(const at::Tensor& a, const at::Tensor& b, const std::vector<int64_t>& a_dims,
                      const std::vector<int64_t>& b_dims);

}  // namespace torch_xla::aten
