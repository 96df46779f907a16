// Matrix products in the form that the platform supports.
#pragma once

#include <string_view>

#include "runtime/element_type.h"
#include "runtime/platform.h"
#include "stablehlo/ops.h"

namespace torch_xla::lowering {

/// Returns stablehlo::DotGeneral. If the platform has no matrix product of the element type,
/// returns sums of products instead: TPUs represent 64-bit integers as pairs of halves.
stablehlo::Value Dot(std::string_view platform, stablehlo::Value lhs, stablehlo::Value rhs,
                     const stablehlo::DotDimensionNumbers& numbers,
                     stablehlo::Precision precision = stablehlo::Precision::kDefault,
                     stablehlo::ElementType result = stablehlo::ElementType::kInvalid);

/// Returns the precision of products of float matrices on the platform: the setting of
/// torch_xla.backends, or PyTorch's setting if that is not set.
stablehlo::Precision PrecisionOn(std::string_view platform);

/// Whether convolutions of the element type must be composed of Dot(). TPUs have no convolutions of
/// 64-bit integers, and cuDNN has none of the integer types that PyTorch has.
inline bool LacksConvolution(std::string_view platform, stablehlo::ElementType element) {
  if (runtime::HasLongsInPairs(platform)) return element == stablehlo::ElementType::kS64;
  return runtime::IsGpu(platform) && runtime::IsInteger(element);
}

}  // namespace torch_xla::lowering
