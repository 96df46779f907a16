// How exactly float32 is multiplied where the hardware offers a choice.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace torch_xla::lowering {

/// Set by torch_xla.backends. kPlatform: as the platform's lowering thinks best.
enum class MatMulPrecision : uint8_t { kPlatform, kDefault, kHigh, kHighest };

inline std::atomic<MatMulPrecision> mat_mul_precision{MatMulPrecision::kPlatform};

/// All that programs are lowered by. `tf32_…`: whether GPUs may round to TF32, as
/// torch.backends.cuda and torch.set_float32_matmul_precision say; other platforms do not ask.
struct FloatPrecision {
  MatMulPrecision products = MatMulPrecision::kPlatform;
  bool tf32_products = false, tf32_convolutions = false;

  bool operator==(const FloatPrecision&) const = default;
};

FloatPrecision CurrentPrecision(std::string_view platform);

}  // namespace torch_xla::lowering
