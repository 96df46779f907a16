// Matrix products for other lowerings: the call for products of a few rows, and StableHLO's
// dot_general for tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// Whether the processor has instructions for products of the element type, which is not float.
bool MultipliesNatively(ElementType element);

/// Whether CallFewRows() supports the element type.
inline bool HasFewRows(ElementType element) {
  return element == ElementType::kF32 || element == ElementType::kBF16;
}

/// Multiplies `rows` [*, m, k] by `weights` [*, n, k], or [*, k, n] if `by_columns`. Both operands
/// are f32 or bf16. The result [*, m, n] is f32.
Value CallFewRows(Value rows, Value weights, bool by_columns = false);

}  // namespace torch_xla::lowering

namespace torch_xla::aten {

/// Multiplies `a` and `b` and sums over some dimensions of each. The result has the remaining
/// dimensions of `a`, then those of `b`. No reshape merges dimensions, because their sharding would
/// be lost.
at::Tensor DotGeneral(const at::Tensor& a, const at::Tensor& b, const std::vector<int64_t>& a_dims,
                      const std::vector<int64_t>& b_dims);

}  // namespace torch_xla::aten
