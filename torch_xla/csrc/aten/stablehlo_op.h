// Functions in StableHLO that a user wrote, as the operator torch_xla::stablehlo.
#pragma once

#include <c10/core/ScalarType.h>

#include "stablehlo/type.h"

namespace torch_xla::aten {

/// The dtype of the same values; the inverse of lowering::NaturalType.
c10::ScalarType DtypeOf(stablehlo::ElementType element);

}  // namespace torch_xla::aten
