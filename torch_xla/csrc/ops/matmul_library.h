// Products of matrices by ATen's kernels (oneDNN, MKL), called from the program on the device's
// memory: XLA:CPU's library multiplies float alone, the other types are loops there, and bfloat16
// is converted, which a processor may multiply itself at two to eight times the speed. Table
// lowering/kernel_table.inc says where.
#pragma once

#include <optional>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// Whether the processor has instructions for products of that element type, besides float's.
bool MultipliesNatively(ElementType element);

/// Whether ATen's products of an element type are made for this processor: those of what it
/// multiplies natively, and float's on an Intel (MKL).
bool HasTunedProducts(ElementType element);

/// Whether ATen multiplies matrices `from` one element type `to` another.
bool HasMatmul(ElementType from, ElementType to);

/// A matrix, or a batch of them, as it lies in memory.
struct MatrixOperand {
  Value value;              // [*, rows, columns]
  bool transposed = false;  // [*, columns, rows]
};

/// lhs times rhs [*, m, n] of `element`, rounded once, with `bias`, of the same type, which
/// broadcasts to the result, where there is one; `*` is one dimension or none.
Value CallMatmul(const MatrixOperand& lhs, const MatrixOperand& rhs, ElementType element,
                 std::optional<Value> bias = std::nullopt);

}  // namespace torch_xla::lowering
