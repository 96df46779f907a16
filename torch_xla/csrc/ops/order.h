// Search in sorted arrays, for other lowerings.
#pragma once

#include "lowering/context.h"

namespace torch_xla::lowering {

/// Returns for each element of `values` the number of elements in the sorted last dimension of
/// `boundaries` that are less than the value, or less than or equal to the value if `right`.
/// `boundaries` may be a single row that all values share.
Value CountBefore(Value boundaries, Value values, bool right);

}  // namespace torch_xla::lowering
