// Gives a value the sharding that its tensor asks for.
#pragma once

#include "ir/node.h"
#include "tensor/sharding.h"

namespace torch_xla::tensor {

/// Returns a value with the same content and this sharding. Data that has the sharding is returned
/// unchanged; data that is not on the devices yet will be uploaded with it; any other value is
/// resharded by the program.
ir::Value WithSharding(ir::Value value, const distributed::Sharding& sharding);

}  // namespace torch_xla::tensor
