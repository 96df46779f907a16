// The operator torch_xla::stablehlo, which calls a function in StableHLO that a user wrote.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

#include "sizes/loops.h"
#include "stablehlo/type.h"

namespace torch_xla::aten {

/// Returns the dtype that has the values of an element type. It is the inverse of
/// lowering::NaturalType.
c10::ScalarType DtypeOf(stablehlo::ElementType element);

/// Calls a function that is given as StableHLO text, and returns its results. The body of the
/// function is checked only when the graph is compiled.
std::vector<at::Tensor> CallStableHlo(const std::string& text,
                                      const std::vector<at::Tensor>& inputs);

}  // namespace torch_xla::aten

namespace torch_xla::lowering {

/// The text of a loop as a function of operands of these shapes.
std::string LoopText(const sizes::LoopForm& form, const std::vector<ir::ShapeRef>& operands);

}  // namespace torch_xla::lowering
