// The element types of XLA buffers and StableHLO tensors, and their properties that need neither
// torch nor PJRT.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace torch_xla::runtime {

enum class ElementType : uint8_t {
  kInvalid,
  kPred,
  kS8,
  kS16,
  kS32,
  kS64,
  kU8,
  kU16,
  kU32,
  kU64,
  kF8E4M3FN,
  kF8E4M3FNUZ,
  kF8E5M2,
  kF8E5M2FNUZ,
  kF8E8M0FNU,
  kF16,
  kBF16,
  kF32,
  kF64,
  kC64,
  kC128,
};

/// The size of one element in bytes; 0 for kInvalid.
size_t ByteWidth(ElementType type);

/// The name in MLIR: "i1", "ui8", "f32", "complex<f32>", "f8E4M3FN", ….
std::string_view MlirName(ElementType type);

constexpr bool IsComplex(ElementType t) {
  return t == ElementType::kC64 || t == ElementType::kC128;
}
constexpr bool IsFloat(ElementType t) {
  return t >= ElementType::kF8E4M3FN && t <= ElementType::kF64;
}
constexpr bool IsSigned(ElementType t) { return t >= ElementType::kS8 && t <= ElementType::kS64; }
constexpr bool IsUnsigned(ElementType t) { return t >= ElementType::kU8 && t <= ElementType::kU64; }
constexpr bool IsInteger(ElementType t) { return IsSigned(t) || IsUnsigned(t); }

}  // namespace torch_xla::runtime
