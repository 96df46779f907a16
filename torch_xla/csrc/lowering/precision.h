// The precision of float32 products, where the hardware offers a choice.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace torch_xla::lowering {

/// Set by torch_xla.backends. kPlatform leaves the choice to the platform's lowering.
enum class MatMulPrecision : uint8_t { kPlatform, kDefault, kHigh, kHighest };

inline std::atomic<MatMulPrecision> mat_mul_precision{MatMulPrecision::kPlatform};

/// All settings of precision that lowerings depend on. `rounds_…` says whether the platform may
/// choose the rounding. On GPUs it says whether torch.set_float32_matmul_precision and
/// torch.backends allow TF32.
struct FloatPrecision {
  MatMulPrecision products = MatMulPrecision::kPlatform;
  bool rounds_products = true, rounds_convolutions = true;

  bool operator==(const FloatPrecision&) const = default;
};

FloatPrecision CurrentPrecision(std::string_view platform);

}  // namespace torch_xla::lowering
