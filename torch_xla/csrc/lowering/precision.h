// How exactly float32 is multiplied where the hardware offers a choice.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace torch_xla::lowering {

/// Set by torch_xla.backends. kPlatform: as the platform's lowering thinks best.
enum class MatMulPrecision : uint8_t { kPlatform, kDefault, kHigh, kHighest };

inline std::atomic<MatMulPrecision> mat_mul_precision{MatMulPrecision::kPlatform};

/// All that programs are lowered by. `rounds_…`: whether the platform may round as it thinks best.
/// GPUs, to TF32, where torch.set_float32_matmul_precision and torch.backends say so.
struct FloatPrecision {
  MatMulPrecision products = MatMulPrecision::kPlatform;
  bool rounds_products = true, rounds_convolutions = true;

  bool operator==(const FloatPrecision&) const = default;
};

FloatPrecision CurrentPrecision(std::string_view platform);

}  // namespace torch_xla::lowering
