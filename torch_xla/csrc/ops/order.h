// Searches in what is sorted, which other lowerings are made of, too.
#pragma once

#include "lowering/context.h"

namespace torch_xla::lowering {

/// How many elements of the sorted last dimension of `boundaries` come before each of
/// `values`: those below it, with `right` those equal to it too. One row of boundaries serves all.
Value CountBefore(Value boundaries, Value values, bool right);

}  // namespace torch_xla::lowering
