// What tells operators apart that share a Lower: literals in the yaml.
#pragma once

#include <cstdint>

namespace torch_xla::lowering {

/// How an element between others is computed of them.
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
