// How exactly float32 matrices are multiplied where the hardware offers a choice.
#pragma once

#include <atomic>
#include <cstdint>

namespace torch_xla::lowering {

/// Set by torch_xla.backends. kPlatform: as the platform's lowering thinks best.
enum class MatMulPrecision : uint8_t { kPlatform, kDefault, kHigh, kHighest };

inline std::atomic<MatMulPrecision> mat_mul_precision{MatMulPrecision::kPlatform};

}  // namespace torch_xla::lowering
