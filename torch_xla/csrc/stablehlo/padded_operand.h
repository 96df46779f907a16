// Operands of operations that pad: a workaround for XLA's partitioner.
#pragma once

#include "stablehlo/constants.h"
#include "stablehlo/ops.h"

namespace torch_xla::stablehlo {

/// The operand `x` of an operation that pads it with `value`. For each array and window the
/// partitioner keeps the padded parts of the first operation, and hands these to later operations
/// with another padding value. So in programs over several devices an array has one padding value,
/// zero; for others it is behind a barrier, which is another array.
inline Value PaddedOperand(Value x, Value value) {
  if (x.builder().partitions() == 1) return x;
  if (value == Constant(x.builder(), 0, value.type())) return x;
  return OptimizationBarrier({x, value})[0];
}

}  // namespace torch_xla::stablehlo
