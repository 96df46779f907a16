// Lowers the nodes of `_foreach_` calls.
#pragma once

#include <span>
#include <vector>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// An argument of a `_foreach_` node: an operand for each tensor of its lists, or one for all
/// tensors.
struct ListArgument {
  std::span<const ir::Value> values;
  bool is_list;

  const ir::Value& Of(size_t tensor) const { return values[is_list ? tensor : 0]; }
};

/// The arguments of the node, in the order of its schema.
std::vector<ListArgument> ListArguments(const ir::Node& node);

/// Lowers `element` for each element of the node's lists. An argument that is no list is used for
/// all of them. A number that `element` takes but the node lacks (alpha) is 1.
void LowerForeach(LoweringContext& cx, const ir::Node& node, const ir::OpSpec& element);

}  // namespace torch_xla::lowering
