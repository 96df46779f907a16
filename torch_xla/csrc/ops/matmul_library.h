// Products of matrices of bfloat16 by ATen's kernels (oneDNN), called from the program on the
// device's memory: XLA:CPU converts them to float, and a processor that multiplies bfloat16 itself
// does so at two to eight times the speed. Table lowering/kernel_table.inc says where.
#pragma once

#include <optional>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// Whether the processor has instructions for products of that element type, besides float's.
bool MultipliesNatively(ElementType element);

/// A matrix, or a batch of them, as it lies in memory.
struct MatrixOperand {
  Value value;              // [*, rows, columns]
  bool transposed = false;  // [*, columns, rows]
};

/// lhs times rhs [*, m, n], accumulated in float and rounded once, with `bias`, which broadcasts
/// to the result, where there is one. All of one element type; `*` is one dimension or none.
Value CallMatmul(const MatrixOperand& lhs, const MatrixOperand& rhs,
                 std::optional<Value> bias = std::nullopt);

}  // namespace torch_xla::lowering
