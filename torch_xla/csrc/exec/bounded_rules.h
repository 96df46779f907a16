// What operations do with padding.
#pragma once

#include "ir/op.h"

namespace torch_xla::lazy {

class BoundedGraph;
using BoundedRule = void (*)(BoundedGraph& graph);

/// The rule of an operation; null if there is none. With `makes` only a rule of an operation that
/// makes varying sizes without having any in its operands.
BoundedRule RuleOf(const ir::OpSpec& op, bool makes);

}  // namespace torch_xla::lazy
