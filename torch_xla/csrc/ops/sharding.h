// How a value shall lie on the devices, in the program.
#pragma once

#include "distributed/sharding.h"
#include "stablehlo/builder.h"

namespace torch_xla::lowering {

/// `x`, to lie on the devices like this.
stablehlo::Value Sharded(stablehlo::Value x, const distributed::Sharding& sharding);

}  // namespace torch_xla::lowering
