// Matrix products in the form that the platform has.
#pragma once

#include <string_view>

#include "runtime/element_type.h"
#include "runtime/platform.h"
#include "stablehlo/ops.h"

namespace torch_xla::lowering {

/// stablehlo::DotGeneral; or sums of products where the platform has none of that element type, as
/// TPUs have 64-bit integers as pairs of halves and no matrix product of them.
stablehlo::Value Dot(std::string_view platform, stablehlo::Value lhs, stablehlo::Value rhs,
                     const stablehlo::DotDimensionNumbers& numbers,
                     stablehlo::Precision precision = stablehlo::Precision::kDefault,
                     stablehlo::ElementType result = stablehlo::ElementType::kInvalid);

/// How exactly float matrices are multiplied there: as torch_xla.backends says, or else as PyTorch
/// does.
stablehlo::Precision PrecisionOn(std::string_view platform);

/// Whether a convolution of that element type must be made of Dot(): TPUs have none of 64-bit
/// integers, and cuDNN none of any that PyTorch has.
inline bool LacksConvolution(std::string_view platform, stablehlo::ElementType element) {
  if (runtime::HasLongsInPairs(platform)) return element == stablehlo::ElementType::kS64;
  return runtime::IsGpu(platform) && runtime::IsInteger(element);
}

}  // namespace torch_xla::lowering
