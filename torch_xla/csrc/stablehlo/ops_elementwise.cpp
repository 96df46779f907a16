#include <array>
#include <limits>
#include <numeric>

#include "stablehlo/arithmetic.h"
#include "stablehlo/complex_functions.h"
#include "stablehlo/joined_dims.h"
#include "stablehlo/ops.h"
#include "stablehlo/text.h"

namespace torch_xla::stablehlo {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Sets of element types that an operation accepts.
enum Kind : unsigned {
  kPredKind = 1,
  kSignedKind = 2,
  kUnsignedKind = 4,
  kFloatKind = 8,
  kComplexKind = 16,
  kIntegerKind = kSignedKind | kUnsignedKind,
  kBitsKind = kPredKind | kIntegerKind,
  kInexactKind = kFloatKind | kComplexKind,
  kNumberKind = kIntegerKind | kInexactKind,
  kOrderedKind = kPredKind | kIntegerKind | kFloatKind,
  kAnyKind = kPredKind | kNumberKind,
};

unsigned KindOf(ElementType element) {
  if (element == ElementType::kPred) return kPredKind;
  if (runtime::IsSigned(element)) return kSignedKind;
  if (runtime::IsUnsigned(element)) return kUnsignedKind;
  if (runtime::IsFloat(element)) return kFloatKind;
  if (runtime::IsComplex(element)) return kComplexKind;
  return 0;
}

std::string KindNames(unsigned kinds) {
  constexpr std::array<std::pair<unsigned, std::string_view>, 5> kNames = {{
      {kPredKind, "bool"},
      {kSignedKind, "signed integer"},
      {kUnsignedKind, "unsigned integer"},
      {kFloatKind, "float"},
      {kComplexKind, "complex"},
  }};
  std::string out;
  for (auto [kind, name] : kNames) {
    if ((kinds & kind) == 0) continue;
    if (!out.empty()) out += " or ";
    out += name;
  }
  return out;
}

void CheckKind(std::string_view op, unsigned kinds, std::initializer_list<Value> operands) {
  for (Value v : operands) {
    if ((KindOf(v.element()) & kinds) == 0) {
      Fail(op, Cat("elements of type ", KindNames(kinds)), operands);
    }
  }
}

Value Unary(std::string_view op, unsigned kinds, Value x) {
  CheckTensors(op, {x});
  CheckKind(op, kinds, {x});
  return Elementwise(op, {x}, x.type());
}

/// For a result with another element type.
Value UnaryTo(std::string_view op, unsigned kinds, Value x, ElementType result) {
  CheckTensors(op, {x});
  CheckKind(op, kinds, {x});
  return Elementwise(op, {x}, Type(result, x.dims()));
}

Value Binary(std::string_view op, unsigned kinds, Value a, Value b) {
  CheckTensors(op, {a, b});
  if (a.type() != b.type()) Fail(op, "operands of equal types", {a, b});
  CheckKind(op, kinds, {a, b});
  return Elementwise(op, {a, b}, a.type());
}

/// Emits the operation; for complex numbers calls `complex`, which is exact at zeros, infinities
/// and NaN.
Value Inexact(std::string_view op, Value (*complex)(Value), Value x) {
  CheckTensors(op, {x});
  return runtime::IsComplex(x.element()) ? complex(x) : Unary(op, kFloatKind | kComplexKind, x);
}

/// XLA:CPU only uses the last 6 bits of an exponent. The other bits, which are mostly zero, are
/// handled here by repeated squaring.
Value PowerOfIntegers(Value x, Value y) {
  const bool is_signed = runtime::IsSigned(y.element());
  Value rest = ShiftRightLogical(y, FullLike(y, 6));
  if (is_signed) rest = Select(y < 0, 0, rest);
  Value base = x;
  for (int i = 0; i < 6; ++i) base = base * base;
  std::vector<int64_t> dims(x.rank());
  std::iota(dims.begin(), dims.end(), 0);
  Value low = Binary("stablehlo.power", kNumberKind, x, And(y, FullLike(y, 63)));
  Value power = While(
      {rest, base, low},
      [&](std::span<const Value> s) -> std::vector<Value> {
        return {Reduce(NotEqual(s[0], 0), dims, ReduceOp::kOr)};
      },
      [&](std::span<const Value> s) -> std::vector<Value> {
        Value one = FullLike(s[0], 1);
        Value odd = Equal(And(s[0], one), one);
        return {ShiftRightLogical(s[0], one), s[1] * s[1], Select(odd, s[2] * s[1], s[2])};
      })[2];
  if (!is_signed) return power;
  // The reciprocal of an integer is an integer only for 1 and -1.
  Value unit = Select(Equal(And(y, FullLike(y, 1)), 0), 1, x);
  return Select(y < 0, Select(Or(Equal(x, 1), Equal(x, -1)), unit, 0), power);
}

}  // namespace

Value Abs(Value x) {
  CheckTensors("stablehlo.abs", {x});
  if (runtime::IsComplex(x.element())) return complex_functions::Abs(x);
  return UnaryTo("stablehlo.abs", kSignedKind | kInexactKind, x, RealOf(x.element()));
}
Value Cbrt(Value x) { return Unary("stablehlo.cbrt", kFloatKind, x); }
Value Ceil(Value x) { return Unary("stablehlo.ceil", kFloatKind, x); }
Value Conj(Value x) { return Unary("chlo.conj", kInexactKind, x); }
Value Cosine(Value x) { return Inexact("stablehlo.cosine", complex_functions::Cosine, x); }
Value CountLeadingZeros(Value x) { return Unary("stablehlo.count_leading_zeros", kIntegerKind, x); }
Value Exponential(Value x) {
  return Inexact("stablehlo.exponential", complex_functions::Exponential, x);
}
Value ExponentialMinusOne(Value x) {
  return Unary("stablehlo.exponential_minus_one", kInexactKind, x);
}
Value Floor(Value x) { return Unary("stablehlo.floor", kFloatKind, x); }
Value Imag(Value x) {
  CheckTensors("stablehlo.imag", {x});
  return UnaryTo("stablehlo.imag", kInexactKind, x, RealOf(x.element()));
}
Value IsFinite(Value x) {
  return UnaryTo("stablehlo.is_finite", kFloatKind, x, ElementType::kPred);
}
Value Log(Value x) {
  CheckTensors("stablehlo.log", {x});
  // XLA rewrites log(pow(a, b)) to b log(|a|), which is finite where the power is not, and
  // log(exp(a)) to a. This select prevents both rewrites.
  if (runtime::IsFloat(x.element())) x = Select(Equal(x, x), x, FullLike(x, kNan));
  return Inexact("stablehlo.log", complex_functions::Log, x);
}
Value LogPlusOne(Value x) { return Unary("stablehlo.log_plus_one", kInexactKind, x); }
Value Logistic(Value x) { return Inexact("stablehlo.logistic", complex_functions::Logistic, x); }
Value Negate(Value x) { return Unary("stablehlo.negate", kNumberKind, x); }
Value Not(Value x) { return Unary("stablehlo.not", kBitsKind, x); }
Value PopulationCount(Value x) { return Unary("stablehlo.popcnt", kIntegerKind, x); }
Value Real(Value x) {
  CheckTensors("stablehlo.real", {x});
  return UnaryTo("stablehlo.real", kInexactKind, x, RealOf(x.element()));
}
Value Reciprocal(Value x) {
  CheckTensors("stablehlo.divide", {x});
  return runtime::IsComplex(x.element()) ? complex_functions::Reciprocal(x) : 1 / x;
}
Value RoundNearestAfz(Value x) { return Unary("stablehlo.round_nearest_afz", kFloatKind, x); }
Value RoundNearestEven(Value x) { return Unary("stablehlo.round_nearest_even", kFloatKind, x); }
Value Rsqrt(Value x) {
  CheckTensors("stablehlo.rsqrt", {x});
  if (runtime::IsComplex(x.element())) return complex_functions::Reciprocal(Sqrt(x));
  return Unary("stablehlo.rsqrt", kFloatKind, x);
}
Value Sign(Value x) {
  CheckTensors("stablehlo.sign", {x});
  if (runtime::IsComplex(x.element())) return complex_functions::Sign(x);
  return Unary("stablehlo.sign", kSignedKind | kFloatKind, x);
}
Value Sine(Value x) { return Inexact("stablehlo.sine", complex_functions::Sine, x); }
Value Sqrt(Value x) { return Inexact("stablehlo.sqrt", complex_functions::Sqrt, x); }
Value Tan(Value x) { return Inexact("stablehlo.tan", complex_functions::Tan, x); }
Value Tanh(Value x) { return Inexact("stablehlo.tanh", complex_functions::Tanh, x); }

Value Acos(Value x) { return Inexact("chlo.acos", complex_functions::Acos, x); }
Value Acosh(Value x) { return Inexact("chlo.acosh", complex_functions::Acosh, x); }
Value Asin(Value x) { return Inexact("chlo.asin", complex_functions::Asin, x); }
Value Asinh(Value x) { return Inexact("chlo.asinh", complex_functions::Asinh, x); }
Value Atan(Value x) { return Inexact("chlo.atan", complex_functions::Atan, x); }
Value Atanh(Value x) { return Inexact("chlo.atanh", complex_functions::Atanh, x); }
Value Cosh(Value x) { return Inexact("chlo.cosh", complex_functions::Cosh, x); }
Value Digamma(Value x) { return Unary("chlo.digamma", kFloatKind, x); }
Value Erf(Value x) { return Unary("chlo.erf", kFloatKind, x); }
Value ErfInv(Value x) { return Unary("chlo.erf_inv", kFloatKind, x); }
Value Erfc(Value x) { return Unary("chlo.erfc", kFloatKind, x); }
Value Lgamma(Value x) { return Unary("chlo.lgamma", kFloatKind, x); }
Value Sinh(Value x) { return Inexact("chlo.sinh", complex_functions::Sinh, x); }
Value IsInf(Value x) { return UnaryTo("chlo.is_inf", kFloatKind, x, ElementType::kPred); }
Value IsNegInf(Value x) { return UnaryTo("chlo.is_neg_inf", kFloatKind, x, ElementType::kPred); }

Value Add(Value a, Value b) { return Binary("stablehlo.add", kAnyKind, a, b); }
Value And(Value a, Value b) { return Binary("stablehlo.and", kBitsKind, a, b); }
Value Atan2(Value a, Value b) { return Binary("stablehlo.atan2", kInexactKind, a, b); }
Value Complex(Value real, Value imag) {
  constexpr std::string_view kOp = "stablehlo.complex";
  CheckTensors(kOp, {real, imag});
  if (real.type() != imag.type()) Fail(kOp, "operands of equal types", {real, imag});
  if (real.element() != ElementType::kF32 && real.element() != ElementType::kF64) {
    Fail(kOp, "elements of type f32 or f64", {real, imag});
  }
  ElementType result = real.element() == ElementType::kF32 ? ElementType::kC64 : ElementType::kC128;
  return Elementwise(kOp, {real, imag}, Type(result, real.dims()));
}
Value Divide(Value a, Value b) {
  if (runtime::IsComplex(a.element()) && a.type() == b.type()) {
    return complex_functions::Divide(a, b);
  }
  return Binary("stablehlo.divide", kNumberKind, a, b);
}
Value Maximum(Value a, Value b) { return Binary("stablehlo.maximum", kAnyKind, a, b); }
Value Minimum(Value a, Value b) { return Binary("stablehlo.minimum", kAnyKind, a, b); }
Value Multiply(Value a, Value b) { return Binary("stablehlo.multiply", kAnyKind, a, b); }
Value Or(Value a, Value b) { return Binary("stablehlo.or", kBitsKind, a, b); }
Value Power(Value a, Value b) {
  const bool integers = runtime::IsInteger(a.element()) && a.type() == b.type();
  if (runtime::IsComplex(a.element()) && a.type() == b.type()) {
    return complex_functions::Power(a, b);
  }
  return integers ? PowerOfIntegers(a, b) : Binary("stablehlo.power", kNumberKind, a, b);
}
Value Remainder(Value a, Value b) {
  return Binary("stablehlo.remainder", kIntegerKind | kFloatKind, a, b);
}
Value ShiftLeft(Value a, Value b) { return Binary("stablehlo.shift_left", kIntegerKind, a, b); }
Value ShiftRightArithmetic(Value a, Value b) {
  return Binary("stablehlo.shift_right_arithmetic", kIntegerKind, a, b);
}
Value ShiftRightLogical(Value a, Value b) {
  return Binary("stablehlo.shift_right_logical", kIntegerKind, a, b);
}
Value Subtract(Value a, Value b) { return Binary("stablehlo.subtract", kNumberKind, a, b); }
Value Xor(Value a, Value b) { return Binary("stablehlo.xor", kBitsKind, a, b); }
Value NextAfter(Value a, Value b) { return Binary("chlo.next_after", kFloatKind, a, b); }

Value Compare(Value a, Value b, Direction direction, bool total_order) {
  constexpr std::string_view kOp = "stablehlo.compare";
  constexpr std::string_view kDirections[] = {"EQ", "NE", "GE", "GT", "LE", "LT"};
  CheckTensors(kOp, {a, b});
  if (a.type() != b.type()) Fail(kOp, "operands of equal types", {a, b});
  unsigned kind = KindOf(a.element());
  if (kind == 0) Fail(kOp, "elements of a valid type", {a, b});
  if (kind == kComplexKind && direction != Direction::kEq && direction != Direction::kNe) {
    Fail(kOp, "EQ or NE for complex elements", {a, b});
  }
  if (total_order && kind != kFloatKind) Fail(kOp, "float elements for a total order", {a, b});
  std::string_view type = kind == kSignedKind                         ? "SIGNED"
                          : (kind & (kUnsignedKind | kPredKind)) != 0 ? "UNSIGNED"
                          : total_order                               ? "TOTALORDER"
                                                                      : "FLOAT";
  return Elementwise(kOp, {a, b}, Type(ElementType::kPred, a.dims()),
                     Cat("comparison_direction = #stablehlo<comparison_direction ",
                         kDirections[static_cast<int>(direction)],
                         ">, compare_type = #stablehlo<comparison_type ", type, ">"));
}

Value Select(Value predicate, Value on_true, Value on_false) {
  constexpr std::string_view kOp = "stablehlo.select";
  CheckTensors(kOp, {predicate, on_true, on_false});
  if (on_true.type() != on_false.type()) {
    Fail(kOp, "branches of equal types", {predicate, on_true, on_false});
  }
  if (predicate.element() != ElementType::kPred ||
      (predicate.rank() != 0 && predicate.dims() != on_true.dims())) {
    Fail(kOp, "an i1 predicate of rank 0 or the shape of the branches",
         {predicate, on_true, on_false});
  }
  return Elementwise(kOp, {predicate, on_true, on_false}, on_true.type());
}

Value Clamp(Value low, Value x, Value high) {
  constexpr std::string_view kOp = "stablehlo.clamp";
  CheckTensors(kOp, {low, x, high});
  CheckKind(kOp, kOrderedKind, {low, x, high});
  for (Value bound : {low, high}) {
    if (bound.element() != x.element() || (bound.rank() != 0 && bound.dims() != x.dims())) {
      Fail(kOp, "bounds of the operand's element type and of rank 0 or its shape", {low, x, high});
    }
  }
  return Elementwise(kOp, {low, x, high}, x.type());
}

Value Convert(Value x, ElementType element) {
  constexpr std::string_view kOp = "stablehlo.convert";
  Builder& builder = CheckTensors(kOp, {x});
  if (element == ElementType::kInvalid) Fail(kOp, "a valid element type to convert to", {x});
  if (x.element() == element) return x;
  // XLA would only look at the real part.
  if (element == ElementType::kPred && runtime::IsComplex(x.element())) return NotEqual(x, 0);
  if (x.element() == ElementType::kPred && (KindOf(element) & kInexactKind)) {
    // XLA rewrites a product with a converted predicate to a select, which hides NaN and infinity.
    const Value zero = Constant(builder, 0.0, Type(element, x.dims()));
    return Select(x, FullLike(zero, 1.0), zero);
  }
  return Elementwise(kOp, {x}, Type(element, x.dims()));
}

Value BitcastConvert(Value x, ElementType element) {
  constexpr std::string_view kOp = "stablehlo.bitcast_convert";
  Builder& builder = CheckTensors(kOp, {x});
  bool from_pred = x.element() == ElementType::kPred, to_pred = element == ElementType::kPred;
  if (element == ElementType::kInvalid || from_pred != to_pred ||
      runtime::IsComplex(x.element()) != runtime::IsComplex(element)) {
    Fail(kOp, Cat("element types of the same kind, not ", runtime::MlirName(element)), {x});
  }
  if (x.element() == element) return x;
  auto from = static_cast<int64_t>(runtime::ByteWidth(x.element()));
  auto to = static_cast<int64_t>(runtime::ByteWidth(element));
  Dims dims = x.dims();
  if (from > to) {
    dims.push_back(from / to);
  } else if (from < to) {
    if (dims.empty() || dims.back() != to / from) {
      Fail(kOp,
           Cat("a last dimension of ", to / from, " to join into ", runtime::MlirName(element)),
           {x});
    }
    dims.pop_back();
  }
  return builder.Op(kOp, {x}, Type(element, dims));
}

}  // namespace torch_xla::stablehlo
