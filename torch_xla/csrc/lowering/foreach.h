// Lowering of the nodes that `_foreach_` calls become.
#pragma once

#include "lowering/context.h"

namespace torch_xla::lowering {

/// Lowers `element` for each element of the node's lists. What is no list is the same for all;
/// a number that `element` takes and the node lacks (alpha) is 1.
void LowerForeach(LoweringContext& cx, const ir::Node& node, const ir::OpSpec& element);

}  // namespace torch_xla::lowering
