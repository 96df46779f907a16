// An operation that says how its operand shall lie on the devices; else it is the operand.
#pragma once

#include "distributed/sharding.h"
#include "ir/attributes.h"
#include "ir/op.h"

namespace torch_xla::distributed {

extern const ir::OpSpec sharding_op;

/// Its attributes.
void WriteSharding(const Sharding& sharding, ir::Words& words);

}  // namespace torch_xla::distributed
