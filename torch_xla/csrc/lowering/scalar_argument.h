// A number argument of a call (an exponent, an eps) in a lowering.
#pragma once

#include <c10/core/Scalar.h>

#include <optional>

#include "stablehlo/ops.h"

namespace torch_xla::lowering {

/// A number as the text of a program writes it.
stablehlo::Literal LiteralOf(const c10::Scalar& number);

/// Either its value is part of the program, which is compiled again for another one, or it is a
/// parameter. The executor chooses (exec/constant_policy.h): a lowering must do for both.
class Number {
 public:
  Number(const c10::Scalar& constant) : constant_(constant) {}  // NOLINT
  explicit Number(stablehlo::Value parameter) : parameter_(parameter) {}

  const std::optional<c10::Scalar>& constant() const { return constant_; }
  /// The number with the element type and the dimensions of `x`.
  stablehlo::Value Like(stablehlo::Value x) const;

 private:
  std::optional<c10::Scalar> constant_;
  stablehlo::Value parameter_;
};

}  // namespace torch_xla::lowering
