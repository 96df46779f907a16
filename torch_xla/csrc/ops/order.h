// Search in sorted arrays, for other lowerings.
#pragma once

#include "lowering/context.h"

namespace torch_xla::lowering {

/// For each of `values`, how many elements of the sorted last dimension of `boundaries` are less
/// than it, or less or equal if `right`. `boundaries` may be a single row for all values.
Value CountBefore(Value boundaries, Value values, bool right);

}  // namespace torch_xla::lowering
