// The operator torch_xla::stablehlo, which calls a function in StableHLO that a user wrote.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

#include "stablehlo/type.h"

namespace torch_xla::aten {

/// The dtype with the values of an element type; the inverse of lowering::NaturalType.
c10::ScalarType DtypeOf(stablehlo::ElementType element);

/// Calls a function given as StableHLO text. The body is not checked before the graph is compiled.
std::vector<at::Tensor> CallStableHlo(const std::string& text,
                                      const std::vector<at::Tensor>& inputs);

}  // namespace torch_xla::aten
