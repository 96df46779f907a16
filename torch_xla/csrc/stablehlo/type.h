// The type of a StableHLO value: a ranked tensor of static shape, or a token.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/element_type.h"

namespace torch_xla::stablehlo {

using runtime::ElementType;
using Dims = std::vector<int64_t>;

/// Thrown if an operation gets operands or attributes that StableHLO does not allow. The text names
/// the operation, the expectation and the operand types.
class Error : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

struct Type {
  ElementType element = ElementType::kInvalid;
  Dims dims;
  /// True for `!stablehlo.token`, which has neither element type nor dimensions.
  bool token = false;

  Type() = default;
  Type(ElementType element, Dims dims) : element(element), dims(std::move(dims)) {}
  static Type Token();

  int64_t rank() const { return static_cast<int64_t>(dims.size()); }
  int64_t num_elements() const;
  bool operator==(const Type&) const = default;
  /// The name in MLIR: "tensor<2x3xf32>", "tensor<i1>", "!stablehlo.token".
  std::string ToString() const;
  /// Appends ToString() to `out`.
  void AppendTo(std::string& out) const;
};

}  // namespace torch_xla::stablehlo
