// Operators on Values, so that a lowering reads like the formula that it computes. Operands of
// different shapes are broadcast together (trailing dimensions aligned), and a number takes the
// type of the other operand. The element types must agree. `==` compares handles; Equal compares
// elements.
#pragma once

#include <limits>
#include <utility>

#include "stablehlo/ops.h"

namespace torch_xla::stablehlo {

/// Both operands, broadcast to their common shape.
inline std::pair<Value, Value> BroadcastTogether(Value a, Value b) {
  if (a.dims() == b.dims()) return {a, b};
  const Dims dims = BroadcastShape(a.dims(), b.dims());
  return {BroadcastTo(a, dims), BroadcastTo(b, dims)};
}

#define TORCH_XLA_VALUE_OPERATOR(symbol, op)                                           \
  inline Value operator symbol(Value x, Value y) {                                     \
    auto [a, b] = BroadcastTogether(x, y);                                             \
    return op;                                                                         \
  }                                                                                    \
  inline Value operator symbol(Value a, Literal b) { return a symbol FullLike(a, b); } \
  inline Value operator symbol(Literal a, Value b) { return FullLike(b, a) symbol b; }

TORCH_XLA_VALUE_OPERATOR(+, Add(a, b))
TORCH_XLA_VALUE_OPERATOR(-, Subtract(a, b))
TORCH_XLA_VALUE_OPERATOR(*, Multiply(a, b))
TORCH_XLA_VALUE_OPERATOR(/, Divide(a, b))
TORCH_XLA_VALUE_OPERATOR(<, Compare(a, b, Direction::kLt))
TORCH_XLA_VALUE_OPERATOR(<=, Compare(a, b, Direction::kLe))
TORCH_XLA_VALUE_OPERATOR(>, Compare(a, b, Direction::kGt))
TORCH_XLA_VALUE_OPERATOR(>=, Compare(a, b, Direction::kGe))
#undef TORCH_XLA_VALUE_OPERATOR

inline Value operator-(Value x) { return Negate(x); }

inline Value Maximum(Value x, Literal y) { return Maximum(x, FullLike(x, y)); }
inline Value Minimum(Value x, Literal y) { return Minimum(x, FullLike(x, y)); }
inline Value Select(Value predicate, Literal on_true, Value on_false) {
  return Select(predicate, FullLike(on_false, on_true), on_false);
}
inline Value Select(Value predicate, Value on_true, Literal on_false) {
  return Select(predicate, on_true, FullLike(on_true, on_false));
}
/// Elementwise x == y and x != y.
inline Value Equal(Value x, Value y) { return Compare(x, y, Direction::kEq); }
inline Value Equal(Value x, Literal y) { return Equal(x, FullLike(x, y)); }
inline Value NotEqual(Value x, Value y) { return Compare(x, y, Direction::kNe); }
inline Value NotEqual(Value x, Literal y) { return NotEqual(x, FullLike(x, y)); }
inline bool IsEmpty(Value x) { return x.type().num_elements() == 0; }
/// True for a NaN (in either part of a complex number); never true for integers.
inline Value IsNan(Value x) { return NotEqual(x, x); }
/// `x`, but NaN where `is_nan` is true.
inline Value NanWhere(Value is_nan, Value x) {
  return Select(is_nan, FullLike(x, std::numeric_limits<double>::quiet_NaN()), x);
}
/// Whether the sign bit of a 32-bit or 64-bit float is set; zeros and NaN have signs, too.
inline Value IsNegative(Value x) {
  const bool wide = x.element() == ElementType::kF64;
  return BitcastConvert(x, wide ? ElementType::kS64 : ElementType::kS32) < 0;
}
inline Value CopySign(Value x, Value sign) {
  Value size = Abs(x);
  return Select(IsNegative(sign), -size, size);
}
/// Like Maximum and Minimum, with NaN if either operand is NaN. But of two equal operands they
/// return the first one, while StableHLO's operations choose between 0 and -0.
inline Value FirstMaximum(Value x, Value y) {
  return runtime::IsFloat(x.element()) ? Select(Or(x >= y, IsNan(x)), x, y) : Maximum(x, y);
}
inline Value FirstMinimum(Value x, Value y) {
  return runtime::IsFloat(x.element()) ? Select(Or(x <= y, IsNan(x)), x, y) : Minimum(x, y);
}

}  // namespace torch_xla::stablehlo
