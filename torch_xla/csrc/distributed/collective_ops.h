// Collectives as operations of the graph.
//
// Operands: the arrays, and last a token; results: the same. The token (a byte without content)
// is the order: each collective takes the one before it gave (distributed/collective_node.h), in
// the same program or in a later one. Attributes: how many arrays, then the words of Encode().
#pragma once

#include "distributed/collective.h"
#include "ir/node.h"
#include "ir/op.h"

namespace torch_xla::distributed {

/// Target of the custom call that a collective is on the CPU. Its attributes: `collective`,
/// from Encode, and `text`, from Describe.
inline constexpr const char* kCollectiveTarget = "torch_xla.collective";

const ir::OpSpec& CollectiveOp(CollectiveKind kind);
bool IsCollective(const ir::OpSpec& op);

}  // namespace torch_xla::distributed
