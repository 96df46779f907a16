// Elementwise operations. Those with an exact counterpart in StableHLO are named in the yaml and
// need no function here.
#include "ops/pointwise.h"

#include <torch/version.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "XLALowerings.h"
#include "cpu/calls.h"
#include "cpu/choices.h"
#include "lowering/elementwise.h"
#include "lowering/kernel_choice.h"
#include "lowering/library_call.h"
#include "runtime/platform.h"
#include "stablehlo/arithmetic.h"

namespace torch_xla::lowering {

std::optional<Value> CallPointwise(const LoweringContext& cx, const std::vector<Value>& operands) {
  const std::string_view name = cx.node().op().name;
  const int64_t function = cpu::FindPointwise(name);
  const stablehlo::Type& type = operands[0].type();
  if (function < 0 || !runtime::IsFloat(type.element) || runtime::ByteWidth(type.element) < 4) {
    return std::nullopt;
  }
  // A smaller array fuses with the operations around it.
  const bool is_large = type.num_elements() >= cpu::choices::kLargePointwise;
  if (!ChoosesLibrary(cx, "pointwise", {name, is_large ? "large" : "small"})) return std::nullopt;
  return CallLibrary(cpu::kPointwiseTarget, operands, {type}, cpu::PointwiseCall{function})[0];
}

}  // namespace torch_xla::lowering

namespace torch_xla::lowering::aten {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Value ToPred(LoweringContext& cx, Value x) { return To(x, ElementType::kPred, cx.output_dims()); }

/// `op` for floats; integers are rounded already.
Value Rounded(LoweringContext& cx, Value x, Value (*op)(Value)) {
  x = ToOutput(cx, x);
  return runtime::IsFloat(x.element()) ? op(x) : x;
}

/// Calls a function of the library if there is one, else uses `op`.
Value ByLibrary(LoweringContext& cx, Value x, Value (*op)(Value)) {
  x = ToOutput(cx, x);
  const std::optional<Value> called = CallPointwise(cx, {x});
  return called ? *called : op(x);
}

Value Truncate(Value x) { return Select(x < 0, Ceil(x), Floor(x)); }

/// log(x) / log_base, which is exact where x is a small power of the base.
Value LogToBase(LoweringContext& cx, Value self, double log_base) {
  auto [x] = ToCompute(cx, self);
  Value log = Log(x);
  if (!runtime::IsComplex(x.element())) return ToOutput(cx, log / log_base);
  // Divide the parts: a complex division would make NaN of log(0).
  return Complex(Real(log) / log_base, Imag(log) / log_base);
}

/// Whether the real or the imaginary part equals one of `values`.
Value EqualsAny(Value x, std::initializer_list<double> values) {
  if (runtime::IsComplex(x.element())) {
    return Or(EqualsAny(Real(x), values), EqualsAny(Imag(x), values));
  }
  Value result = FullLike(Convert(x, ElementType::kPred), false);
  if (!runtime::IsFloat(x.element())) return result;
  for (double value : values) result = Or(result, Equal(x, value));
  return result;
}

/// A clamp's bound, if it is outside the range of an integral output 0. Since PyTorch 2.15 it is
/// the end of that range. Before, it wraps around (and is refused if it is above the range).
Value WithinOutput(LoweringContext& cx, Value bound) {
  constexpr bool kSaturates = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15;
  const ElementType output = cx.output_element(), wide = bound.element();
  if (!kSaturates || output == wide || !runtime::IsInteger(output) || !runtime::IsInteger(wide)) {
    return bound;
  }
  if (output != ElementType::kU64) {
    bound = Minimum(bound, Convert(MaxFinite(cx.builder(), output), wide));
  }
  if (wide == ElementType::kU64) return bound;
  return Maximum(bound, Convert(MinFinite(cx.builder(), output), wide));
}

/// Whether the signs differ; neither may be zero.
Value SignsDiffer(Value a, Value b) { return NotEqual(a < 0, b < 0); }

/// Divisors that abort the process where XLA folds constants with the processor's division: 0, and
/// -1 for the smallest integer.
Value IsTrap(Value b) {
  return runtime::IsSigned(b.element()) ? Or(Equal(b, 0), Equal(b, -1)) : Equal(b, 0);
}

/// a / b as XLA defines it: all bits are set for b = 0.
Value SafeDivide(Value a, Value b) {
  if (!runtime::IsInteger(a.element())) return Divide(a, b);
  Value quotient = Divide(a, Select(IsTrap(b), 1, b)), zero = Equal(b, 0);
  if (runtime::IsSigned(b.element())) quotient = Select(Equal(b, -1), -a, quotient);
  return Select(zero, Not(FullLike(a, 0)), quotient);
}

/// The remainder of SafeDivide: a for b = 0.
Value SafeRemainder(Value a, Value b) {
  if (!runtime::IsInteger(a.element())) return Remainder(a, b);
  Value remainder = Remainder(a, Select(IsTrap(b), 1, b));
  return Select(Equal(b, 0), a, remainder);
}

Value FloorDivideIntegers(Value a, Value b) {
  Value quotient = SafeDivide(a, b);
  if (!runtime::IsSigned(a.element())) return quotient;
  Value inexact = NotEqual(SafeRemainder(a, b), 0);
  return Select(And(inexact, SignsDiffer(a, b)), quotient - 1, quotient);
}

/// Python's //, which must not be off by one where the quotient rounds up to an integer.
Value FloorDivideFloats(Value a, Value b) {
  Value quotient = a / b;
  Value remainder = Remainder(a, b);
  Value exact = (a - remainder) / b;
  Value adjust = And(NotEqual(remainder, 0), SignsDiffer(remainder, b));
  exact = Select(adjust, exact - 1, exact);
  Value floor = Floor(exact);
  floor = Select(exact - floor > 0.5, floor + 1, floor);
  Value signed_zero = quotient * 0;
  return Select(Equal(b, 0), quotient, Select(Equal(exact, 0), signed_zero, floor));
}

/// The operand that is not NaN, or else the result of `op`.
Value IgnoringNan(LoweringContext& cx, Value self, Value other, Value (*op)(Value, Value)) {
  Value a = ToOutput(cx, self), b = ToOutput(cx, other);
  return Select(IsNan(a), b, Select(IsNan(b), a, op(a, b)));
}

/// log(base^a + base^b) to that base, from the larger operand (by real part) and the difference.
Value LogAddExp(LoweringContext& cx, Value self, Value other, double log_base) {
  auto [a, b] = ToCompute(cx, self, other);
  const bool complex = runtime::IsComplex(a.element());
  Value first = complex ? Real(a) >= Real(b) : a >= b;
  Value larger = Select(first, a, b), smaller = Select(first, b, a);
  // The difference of equal operands is 0, even if they are infinite.
  Value difference = Select(Equal(a, b), 0, smaller - larger);
  Value correction = LogPlusOne(Exponential(difference * log_base));
  return ToOutput(cx, larger + correction * (1 / log_base));
}

/// x to a whole power > 0 by repeated squaring.
Value WholePower(Value x, int64_t exponent) {
  if (exponent == 1) return x;
  Value half = WholePower(x, exponent / 2);
  return exponent % 2 ? half * half * x : half * half;
}

}  // namespace

// ---- One operand

Value abs(LoweringContext& cx, Value self) {
  const bool is_signed =
      !runtime::IsUnsigned(self.element()) && self.element() != ElementType::kPred;
  return ToOutput(cx, is_signed ? Abs(self) : self);
}

Value ceil(LoweringContext& cx, Value self) { return Rounded(cx, self, stablehlo::Ceil); }

Value _conj_physical(LoweringContext&, Value self) {
  return runtime::IsComplex(self.element()) ? Conj(self) : self;
}

Value digamma(LoweringContext& cx, Value self) {
  auto [x] = ToCompute(cx, self);
  return ToOutput(cx, Select(Equal(x, 0), -1 / x, Digamma(x)));  // CHLO has NaN at 0
}

Value floor(LoweringContext& cx, Value self) { return Rounded(cx, self, stablehlo::Floor); }

Value frac(LoweringContext& cx, Value self) {
  return Subtract(ToOutput(cx, self), Rounded(cx, self, Truncate));
}

Value isinf(LoweringContext&, Value self) { return EqualsAny(self, {kInfinity, -kInfinity}); }

Value isnan(LoweringContext&, Value self) { return IsNan(self); }

Value isneginf(LoweringContext&, Value self) { return EqualsAny(self, {-kInfinity}); }

Value isposinf(LoweringContext&, Value self) { return EqualsAny(self, {kInfinity}); }

Value exp(LoweringContext& cx, Value self) {
  auto [x] = ToCompute(cx, self);
  Value power = Exponential(x);
  // XLA:CPU's exp ends in a product, which it fuses with a following sum, and then exp(100) - 3e38
  // is finite. So compare with the last float32 whose exponential is finite.
  if (runtime::IsHost(cx.platform()) && !runtime::IsComplex(x.element()) &&
      x.element() != ElementType::kF64) {
    power = Select(x > 88.72283172607422, kInfinity, power);
  }
  return ToOutput(cx, power);
}

Value exp2(LoweringContext& cx, Value self) {
  auto [x] = ToCompute(cx, self);
  if (!runtime::IsComplex(x.element())) return ToOutput(cx, Power(FullLike(x, 2), x));
  return Exponential(Complex(Real(x) * std::numbers::ln2, Imag(x) * std::numbers::ln2));
}

Value log10(LoweringContext& cx, Value self) { return LogToBase(cx, self, std::numbers::ln10); }

Value log2(LoweringContext& cx, Value self) { return LogToBase(cx, self, std::numbers::ln2); }

Value logical_not(LoweringContext& cx, Value self) { return Not(ToPred(cx, self)); }

Value round(LoweringContext& cx, Value self) {
  return Rounded(cx, self, stablehlo::RoundNearestEven);
}

Value round_decimals(LoweringContext& cx, Value self, int64_t decimals) {
  if (decimals == 0) return round(cx, self);
  auto [x] = ToCompute(cx, self);
  const double scale = std::pow(10.0, std::abs(decimals));
  return ToOutput(
      cx, decimals > 0 ? RoundNearestEven(x * scale) / scale : RoundNearestEven(x / scale) * scale);
}

Value sgn(LoweringContext& cx, Value self) {
  return runtime::IsComplex(self.element()) ? Sign(self) : sign(cx, self);
}

Value sign(LoweringContext&, Value self) {
  if (self.element() == ElementType::kPred) return self;
  if (runtime::IsUnsigned(self.element())) return Minimum(self, 1);
  // PyTorch gives 0 for NaN and -0.
  return Select(Or(IsNan(self), Equal(self, 0)), 0, Sign(self));
}

Value trunc(LoweringContext& cx, Value self) { return Rounded(cx, self, Truncate); }

// ---- Several operands

Value acos(LoweringContext& cx, Value self) { return ByLibrary(cx, self, stablehlo::Acos); }
Value asin(LoweringContext& cx, Value self) { return ByLibrary(cx, self, stablehlo::Asin); }
Value atan(LoweringContext& cx, Value self) { return ByLibrary(cx, self, stablehlo::Atan); }
Value cos(LoweringContext& cx, Value self) { return ByLibrary(cx, self, stablehlo::Cosine); }
Value rsqrt(LoweringContext& cx, Value self) { return ByLibrary(cx, self, stablehlo::Rsqrt); }
Value sin(LoweringContext& cx, Value self) { return ByLibrary(cx, self, stablehlo::Sine); }
Value tan(LoweringContext& cx, Value self) { return ByLibrary(cx, self, stablehlo::Tan); }

Value atan2(LoweringContext& cx, Value self, Value other) {
  auto [a, b] = ToCompute(cx, self, other);
  if (const auto called = CallPointwise(cx, {a, b})) return ToOutput(cx, *called);
  return ToOutput(cx, Atan2(a, b));
}

// C's fmod: the sign of the dividend.
Value Fmod(LoweringContext& cx, Value self, Value other) {
  auto [a, b] = ToCompute(cx, self, other);
  if (const auto called = CallPointwise(cx, {a, b})) return ToOutput(cx, *called);
  return ToOutput(cx, SafeRemainder(a, b));
}

// Python's %: the sign of the divisor.
Value Remainder(LoweringContext& cx, Value self, Value other) {
  auto [a, b] = ToCompute(cx, self, other);
  if (const auto called = CallPointwise(cx, {a, b})) return ToOutput(cx, *called);
  Value remainder = SafeRemainder(a, b);
  if (runtime::IsUnsigned(a.element())) return ToOutput(cx, remainder);
  Value adjust = And(NotEqual(remainder, 0), SignsDiffer(remainder, b));
  return ToOutput(cx, Select(adjust, remainder + b, remainder));
}

// PyTorch's formula, which is exact at both ends.
Value Lerp(LoweringContext& cx, Value self, Value end, Value weight) {
  auto [a, b, w] = ToCompute(cx, self, end, weight);
  return ToOutput(cx, Select(Abs(w) < 0.5, a + w * (b - a), b - (b - a) * (1 - w)));
}

Value MaskedFill(LoweringContext& cx, Value self, Value mask, Value value) {
  // PyTorch refuses by the value, but here only the type is known.
  TORCH_CHECK(!runtime::IsComplex(value.element()) || runtime::IsComplex(self.element()),
              "value cannot be converted to type ", self.type().ToString(), " without overflow");
  return Select(ToPred(cx, mask), ToOutput(cx, value), ToOutput(cx, self));
}

Value MaskedFillByNumber(LoweringContext& cx, Value self, Value mask, Value value) {
  const ElementType element = self.element();
  // Tracing has refused numbers with an imaginary part, except for bool.
  if (runtime::IsComplex(value.element()) && !runtime::IsComplex(element) &&
      element != ElementType::kPred) {
    value = Real(value);
  }
  return Select(ToPred(cx, mask), ToOutput(cx, value), ToOutput(cx, self));
}

Value Pow(LoweringContext& cx, Value self, Value exponent) {
  auto [x, y] = ToCompute(cx, self, exponent);
  if (x.element() == ElementType::kPred) return Or(x, Not(y));
  return ToOutput(cx, Power(x, y));
}

// ATen returns 1 for a base of 1 before it reads the exponents. The formula would give NaN for
// complex exponents with an infinity or NaN.
Value PowOfNumber(LoweringContext& cx, Value self, Value exponent) {
  Value power = Pow(cx, self, exponent);
  if (!runtime::IsComplex(power.element())) return power;
  return Select(Equal(ToOutput(cx, self), 1), FullLike(power, 1), power);
}

// NaN in the operand or a bound gives NaN; where low > high, high wins.
Value Clamp(LoweringContext& cx, Value self, std::optional<Value> min, std::optional<Value> max) {
  Value x = ToOutput(cx, self);
  if (min) x = FirstMaximum(x, ToOutput(cx, *min));
  if (max) x = FirstMinimum(x, ToOutput(cx, *max));
  return x;
}

Value ClampByNumbers(LoweringContext& cx, Value self, std::optional<Value> min,
                     std::optional<Value> max) {
  if (min) min = WithinOutput(cx, *min);
  if (max) max = WithinOutput(cx, *max);
  return Clamp(cx, self, min, max);
}

Value ClampBetween(LoweringContext& cx, Value self, Value min, Value max) {
  return ClampByNumbers(cx, self, min, max);
}

Value ClampMaxByNumber(LoweringContext& cx, Value self, Value max) {
  return ClampByNumbers(cx, self, std::nullopt, max);
}

Value ClampMinByNumber(LoweringContext& cx, Value self, Value min) {
  return ClampByNumbers(cx, self, min, std::nullopt);
}

Value ClampMax(LoweringContext& cx, Value self, Value max) {
  return Clamp(cx, self, std::nullopt, max);
}

Value ClampMin(LoweringContext& cx, Value self, Value min) {
  return Clamp(cx, self, min, std::nullopt);
}

// PyTorch and StableHLO agree on shifts by a negative number or by all bits.
Value bitwise_right_shift_Tensor(LoweringContext& cx, Value self, Value other) {
  Value x = ToOutput(cx, self), amount = ToOutput(cx, other);
  return runtime::IsSigned(x.element()) ? ShiftRightArithmetic(x, amount)
                                        : ShiftRightLogical(x, amount);
}

Value FloorDivide(LoweringContext& cx, Value self, Value other) {
  auto [a, b] = ToCompute(cx, self, other);
  const bool integers = runtime::IsInteger(a.element());
  return ToOutput(cx, integers ? FloorDivideIntegers(a, b) : FloorDivideFloats(a, b));
}

Value div_Tensor_mode(LoweringContext& cx, Value self, Value other,
                      std::optional<std::string_view> rounding_mode) {
  if (rounding_mode == "floor") return FloorDivide(cx, self, other);
  auto [a, b] = ToCompute(cx, self, other);
  Value quotient = SafeDivide(a, b);
  const bool truncate = rounding_mode == "trunc" && runtime::IsFloat(quotient.element());
  return ToOutput(cx, truncate ? Truncate(quotient) : quotient);
}

Value fmax(LoweringContext& cx, Value self, Value other) {
  return IgnoringNan(cx, self, other, stablehlo::FirstMaximum);
}

Value fmin(LoweringContext& cx, Value self, Value other) {
  return IgnoringNan(cx, self, other, stablehlo::FirstMinimum);
}

Value heaviside(LoweringContext& cx, Value self, Value values) {
  Value x = ToOutput(cx, self);
  return Select(Equal(x, 0), ToOutput(cx, values), ToOutput(cx, x > 0));
}

Value hypot(LoweringContext& cx, Value self, Value other) {
  auto [a, b] = ToCompute(cx, self, other);
  Value z = Complex(a, b);  // whose absolute value does not overflow on the way
  // An infinity takes precedence over NaN.
  return ToOutput(cx, Select(EqualsAny(z, {kInfinity, -kInfinity}), kInfinity, Abs(z)));
}

Value logaddexp(LoweringContext& cx, Value self, Value other) {
  return LogAddExp(cx, self, other, 1);
}

Value logaddexp2(LoweringContext& cx, Value self, Value other) {
  return LogAddExp(cx, self, other, std::numbers::ln2);
}

Value logical_and(LoweringContext& cx, Value self, Value other) {
  return And(ToPred(cx, self), ToPred(cx, other));
}

Value logical_or(LoweringContext& cx, Value self, Value other) {
  return Or(ToPred(cx, self), ToPred(cx, other));
}

Value logical_xor(LoweringContext& cx, Value self, Value other) {
  return Xor(ToPred(cx, self), ToPred(cx, other));
}

Value nextafter(LoweringContext& cx, Value self, Value other) {
  // In the output's own type: the next float32 is not the next bfloat16.
  return stablehlo::NextAfter(ToOutput(cx, self), ToOutput(cx, other));
}

Value pow_Tensor_Scalar(LoweringContext& cx, Value self, const Number& number) {
  auto [x] = ToCompute(cx, self);
  if (!number.constant()) {
    Value y = number.Like(x);
    if (x.element() == ElementType::kPred) return ToOutput(cx, Or(x, Not(y)));
    Value power = Power(x, y);
    if (!runtime::IsInteger(x.element())) {  // as PyTorch has it: sqrt(-inf) is NaN
      power = Select(Equal(y, 0.5), Sqrt(x), Select(Equal(y, -0.5), Rsqrt(x), power));
    }
    if (runtime::IsComplex(x.element())) {  // as where the exponent is a constant
      const Value square = x * x;
      const std::pair<double, Value> exact[] = {{0, FullLike(x, 1)}, {1, x},
                                                {2, square},         {3, square * x},
                                                {-1, Reciprocal(x)}, {-2, 1 / square}};
      for (const auto& [exponent, value] : exact) power = Select(Equal(y, exponent), value, power);
    }
    return ToOutput(cx, power);
  }
  const c10::Scalar& exponent = *number.constant();
  if (exponent.isComplex() && exponent.toComplexDouble().imag() != 0) {
    const std::complex<double> y(exponent.toComplexDouble());
    return ToOutput(cx, Power(x, FullLike(x, y)));
  }
  const double y = exponent.isComplex() ? exponent.toComplexDouble().real() : exponent.toDouble();
  TORCH_CHECK(y >= 0 || !runtime::IsInteger(x.element()),
              "Integers to negative integer powers are not allowed.");
  if (y == 0) return ToOutput(cx, FullLike(x, 1));
  if (x.element() == ElementType::kPred) return ToOutput(cx, x);
  if (y == 0.5) return ToOutput(cx, Sqrt(x));  // as PyTorch: sqrt(-inf) is NaN
  if (y == -0.5) return ToOutput(cx, Rsqrt(x));
  if (y == -1) return ToOutput(cx, Reciprocal(x));
  if (y == -2) return ToOutput(cx, 1 / (x * x));
  if (y == 1 || y == 2 || y == 3 || (runtime::IsInteger(x.element()) && y > 0)) {
    return ToOutput(cx, WholePower(x, exponent.toLong()));
  }
  return ToOutput(cx, Power(x, FullLike(x, y)));
}

Value where_self(LoweringContext& cx, Value condition, Value self, Value other) {
  return Select(ToPred(cx, condition), ToOutput(cx, self), ToOutput(cx, other));
}

Value xlogy_Tensor(LoweringContext& cx, Value self, Value other) {
  auto [x, y] = ToCompute(cx, self, other);
  return ToOutput(cx, Select(And(Equal(x, 0), Not(IsNan(y))), 0, x * Log(y)));
}

}  // namespace torch_xla::lowering::aten
