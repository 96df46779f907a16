// What log-softmax subtracts, by ATen's kernels on a few rows at a time: XLA writes all that it
// reduces to memory first. Table lowering/kernel_table.inc says where.
#pragma once

#include "lowering/context.h"

namespace torch_xla::lowering {

/// Of each row of [rows…, columns]: the maximum, and the logarithm of the sum of exp(x - maximum).
struct RowSums {
  Value maximum, log_sum;
};

/// `x` of float, not empty.
RowSums CallRowSums(Value x);

}  // namespace torch_xla::lowering
