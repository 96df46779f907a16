// How a value shall lie on the devices, in the program.
#pragma once

#include "stablehlo/builder.h"

namespace torch_xla::lowering {

/// `x`, whose dimensions are not to be split, except `open` ones, which the partitioner decides.
stablehlo::Value Whole(stablehlo::Value x, const stablehlo::Dims& open = {});

}  // namespace torch_xla::lowering
