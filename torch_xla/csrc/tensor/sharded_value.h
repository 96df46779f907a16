// Values that shall lie on the devices in some way.
#pragma once

#include "ir/node.h"
#include "tensor/sharding.h"

namespace torch_xla::lazy {

/// The same content, lying so: data that lies so already is returned as it is, data that is not
/// on the devices yet is sent there so, and all else is moved by the program.
ir::Value WithSharding(ir::Value value, const distributed::Sharding& sharding);

}  // namespace torch_xla::lazy
