// What operations do with padding.
#pragma once

#include "sizes/bounded_graph.h"

namespace torch_xla::sizes {

/// See FindBoundedRule.
BoundedRule RuleOf(const ir::OpSpec& op, bool makes);

}  // namespace torch_xla::sizes
