// Reductions and scans that other lowerings are made of, too.
#pragma once

#include "lowering/context.h"

namespace torch_xla::lowering {

/// Where along dims[0] (no dims: 0) the extreme that a reduction of `x` gave first is; a NaN
/// beats every number.
Value FirstIndex(Value x, Value extreme, const Dims& dims);

/// Every prefix of `x` along `dim` reduced.
Value Scan(Value x, int64_t dim, ReduceOp op);

}  // namespace torch_xla::lowering
