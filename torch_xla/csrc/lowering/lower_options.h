// Options that distinguish operators with the same Lower function; the yaml names them as literals.
#pragma once

#include <cstdint>

namespace torch_xla::lowering {

/// The interpolation between elements.
enum class Interpolation : uint8_t {
  kNearest,
  kNearestExact,
  kLinear,
  kLinearAntialiased,
  kCubic,
  kCubicAntialiased,
  kLanczosAntialiased,
};

}  // namespace torch_xla::lowering
