// How a value shall lie on the devices, in the program.
#pragma once

#include "stablehlo/builder.h"
#include "tensor/sharding.h"

namespace torch_xla::lowering {

/// `x`, to lie on the devices like this.
stablehlo::Value Sharded(stablehlo::Value x, const distributed::Sharding& sharding);

}  // namespace torch_xla::lowering
