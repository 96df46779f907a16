// Functions in StableHLO that a user wrote, as the operator torch_xla::stablehlo.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

#include "stablehlo/type.h"

namespace torch_xla::aten {

/// The dtype of the same values; the inverse of lowering::NaturalType.
c10::ScalarType DtypeOf(stablehlo::ElementType element);

/// A call of a function in StableHLO text, unchecked: an error in its body shows at the sync.
std::vector<at::Tensor> CallStableHlo(const std::string& text,
                                      const std::vector<at::Tensor>& inputs);

}  // namespace torch_xla::aten
