// Collectives as operations of the graph.
//
// The operands are the arrays and a token at the end; the results are the same. The token (a byte
// without content) defines the order: each collective takes the token that the previous collective
// returned (distributed/collective_node.h), in the same program or in a later one. The attributes
// are the number of arrays and then the words of Encode().
#pragma once

#include "distributed/collective.h"
#include "ir/node.h"
#include "ir/op.h"

namespace torch_xla::distributed {

/// The target of the custom call for a collective on the CPU. Its attributes are `collective`, made
/// by Encode, and `text`, made by Describe.
inline constexpr const char* kCollectiveTarget = "torch_xla.collective";

const ir::OpSpec& CollectiveOp(CollectiveKind kind);
bool IsCollective(const ir::OpSpec& op);

}  // namespace torch_xla::distributed
