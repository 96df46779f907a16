// How a value shall lie on the devices, in the program.
#pragma once

#include "stablehlo/builder.h"
#include "tensor/sharding.h"

namespace torch_xla::lowering {

/// `x`, to lie on the devices like this.
stablehlo::Value Sharded(stablehlo::Value x, const distributed::Sharding& sharding);

/// `x`, whose dimensions are not to be split, except `open` ones, which the partitioner decides.
stablehlo::Value Whole(stablehlo::Value x, const stablehlo::Dims& open);

}  // namespace torch_xla::lowering
