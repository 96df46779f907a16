// Matrix products in a form that the platform supports.
#pragma once

#include <string_view>

#include "runtime/element_type.h"
#include "runtime/platform.h"
#include "stablehlo/ops.h"

namespace torch_xla::lowering {

/// stablehlo::DotGeneral, or sums of products if the platform has no matrix product of the element
/// type: TPUs represent 64-bit integers as pairs of halves.
stablehlo::Value Dot(std::string_view platform, stablehlo::Value lhs, stablehlo::Value rhs,
                     const stablehlo::DotDimensionNumbers& numbers,
                     stablehlo::Precision precision = stablehlo::Precision::kDefault,
                     stablehlo::ElementType result = stablehlo::ElementType::kInvalid);

/// The precision of products of float matrices on the platform, from torch_xla.backends or else as
/// in PyTorch.
stablehlo::Precision PrecisionOn(std::string_view platform);

/// Whether convolutions of the element type must be made of Dot(): TPUs have none of 64-bit
/// integers, and cuDNN has none of any integers that PyTorch has.
inline bool LacksConvolution(std::string_view platform, stablehlo::ElementType element) {
  if (runtime::HasLongsInPairs(platform)) return element == stablehlo::ElementType::kS64;
  return runtime::IsGpu(platform) && runtime::IsInteger(element);
}

}  // namespace torch_xla::lowering
