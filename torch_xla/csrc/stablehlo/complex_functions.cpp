#include "stablehlo/complex_functions.h"

#include <limits>
#include <numbers>

#include "stablehlo/arithmetic.h"
#include "stablehlo/text.h"

namespace torch_xla::stablehlo::complex_functions {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The function as the plugin's compiler implements it.
Value Compiled(std::string_view op, Value z) { return CheckTensors(op, {z}).Op(op, {z}, z.type()); }

Value IsInfinite(Value x) { return Equal(stablehlo::Abs(x), kInfinity); }
Value IsZero(Value x) { return Equal(x, 0); }
Value NotFinite(Value x) { return Not(IsFinite(x)); }

Value TimesI(Value z) { return Complex(-Imag(z), Real(z)); }
Value TimesMinusI(Value z) { return Complex(Imag(z), -Real(z)); }

/// Extends an odd function from the first quadrant, where the compiler is right, to all quadrants.
Value ByQuadrant(std::string_view op, Value z) {
  Value x = Real(z), y = Imag(z);
  Value first = Compiled(op, Complex(stablehlo::Abs(x), stablehlo::Abs(y)));
  return Complex(CopySign(Real(first), x), CopySign(Imag(first), y));
}

/// Extends a function f with f(conj z) = conj f(z) from the upper half plane.
Value ByUpperHalf(std::string_view op, Value z) {
  Value y = Imag(z);
  Value upper = Compiled(op, Complex(Real(z), stablehlo::Abs(y)));
  return Complex(Real(upper), Select(IsNegative(y), -Imag(upper), Imag(upper)));
}

/// Computes e^x / 2 times `factor`, for x so large that e^x may overflow.
Value HalfExponentialTimes(Value x, Value factor) {
  Value root = stablehlo::Exponential(x * 0.5);
  return factor * 0.5 * root * root;
}

/// Whether e^x may overflow.
Value IsLarge(Value x) { return x > (x.element() == ElementType::kF64 ? 709.0 : 88.0); }

/// The product with C99's infinities: if both parts are NaN, the infinities of the operands decide.
Value MultiplyByAnnexG(Value p, Value q) {
  Value a = Real(p), b = Imag(p), c = Real(q), d = Imag(q);
  Value ac = a * c, bd = b * d, ad = a * d, bc = b * c;
  Value re = ac - bd, im = ad + bc;
  Value p_infinite = Or(IsInfinite(a), IsInfinite(b));
  Value q_infinite = Or(IsInfinite(c), IsInfinite(d));
  Value overflow = Or(Or(IsInfinite(ac), IsInfinite(bd)), Or(IsInfinite(ad), IsInfinite(bc)));
  Value any = Or(Or(p_infinite, q_infinite), overflow);
  auto boxed = [&](Value x, Value own_infinite) {
    Value unit = Convert(IsInfinite(x), x.element());
    Value kept = Select(IsNan(x), 0, x);
    return CopySign(Select(own_infinite, unit, kept), x);
  };
  a = boxed(a, p_infinite), b = boxed(b, p_infinite);
  c = boxed(c, q_infinite), d = boxed(d, q_infinite);
  Value recovered = And(And(IsNan(re), IsNan(im)), any);
  return Complex(Select(recovered, (a * c - b * d) * kInfinity, re),
                 Select(recovered, (a * d + b * c) * kInfinity, im));
}

}  // namespace

Value Abs(Value z) {
  constexpr std::string_view kOp = "stablehlo.abs";
  Value size = CheckTensors(kOp, {z}).Op(kOp, {z}, Type(RealOf(z.element()), z.dims()));
  return Select(Or(IsInfinite(Real(z)), IsInfinite(Imag(z))), kInfinity, size);
}

Value Acos(Value z) {
  Value w = ByUpperHalf("chlo.acos", z);
  Value on_axis = And(IsZero(Real(z)), IsNan(Imag(z)));
  return Complex(Select(on_axis, std::numbers::pi / 2, Real(w)), Imag(w));
}

Value Acosh(Value z) {
  Value w = ByUpperHalf("chlo.acosh", z);
  Value on_axis = And(IsZero(Real(z)), IsNan(Imag(z)));
  return Complex(Real(w), Select(on_axis, std::numbers::pi / 2, Imag(w)));
}

Value Asin(Value z) {
  Value x = Real(z), w = ByQuadrant("chlo.asin", z);
  return Complex(Select(And(IsZero(x), IsNan(Imag(z))), x, Real(w)), Imag(w));
}

Value Asinh(Value z) {
  Value x = Real(z), y = Imag(z), w = ByQuadrant("chlo.asinh", z);
  return Complex(Select(And(IsNan(x), IsFinite(y)), x, Real(w)), Select(IsZero(y), y, Imag(w)));
}

Value Atan(Value z) {
  Value x = Real(z), y = Imag(z), w = ByQuadrant("chlo.atan", z);
  return Complex(Select(IsNan(x), x, Select(And(IsFinite(x), IsNan(y)), y, Real(w))),
                 Select(And(IsNan(x), IsZero(y)), y, Imag(w)));
}

Value Atanh(Value z) {
  Value x = Real(z), y = Imag(z), w = ByQuadrant("chlo.atanh", z);
  return Complex(Select(And(IsZero(x), IsNan(y)), x, Real(w)),
                 Select(And(IsNan(x), IsFinite(y)), x, Select(IsNan(y), y, Imag(w))));
}

Value Cosh(Value z) {
  Value x = Real(z), y = Imag(z), size = stablehlo::Abs(x);
  Value cosine = stablehlo::Cosine(y), sine = stablehlo::Sine(y);
  Value re = Select(IsLarge(size), HalfExponentialTimes(size, cosine), stablehlo::Cosh(x) * cosine);
  Value im = Select(IsLarge(size), HalfExponentialTimes(size, Select(x < 0, -sine, sine)),
                    stablehlo::Sinh(x) * sine);
  re = Select(And(IsInfinite(x), NotFinite(y)), kInfinity, re);
  im = Select(And(IsZero(x), NotFinite(y)), 0, im);
  Value turned = And(IsNegative(x), Equal(x, x));
  return Complex(re, Select(IsZero(y), Select(turned, -y, y), im));
}

Value Cosine(Value z) { return complex_functions::Cosh(TimesI(z)); }

/// Smith's algorithm with NumPy's zeros and infinities; PyTorch divides in the same way.
Value Divide(Value p, Value q) {
  Value a = Real(p), b = Imag(p), c = Real(q), d = Imag(q);
  Value abs_c = stablehlo::Abs(c), abs_d = stablehlo::Abs(d);
  Value by_real = abs_c >= abs_d;
  Value ratio = Select(by_real, d / c, c / d);
  Value scale = 1 / Select(by_real, c + d * ratio, d + c * ratio);
  Value real = Select(by_real, a + b * ratio, a * ratio + b) * scale;
  Value imag = Select(by_real, b - a * ratio, b * ratio - a) * scale;
  Value zero = And(IsZero(abs_c), IsZero(abs_d));
  return Complex(Select(zero, a / abs_c, real), Select(zero, b / abs_d, imag));
}

Value Exponential(Value z) {
  Value x = Real(z), y = Imag(z);
  Value size = stablehlo::Exponential(x);
  Value cosine = stablehlo::Cosine(y), sine = stablehlo::Sine(y);
  Value re = Select(IsLarge(x), HalfExponentialTimes(x, cosine * 2), size * cosine);
  Value im = Select(IsLarge(x), HalfExponentialTimes(x, sine * 2), size * sine);
  Value undefined = And(IsInfinite(x), NotFinite(y));
  re = Select(undefined, size, re);
  im = Select(undefined, Select(x < 0, CopySign(FullLike(y, 0), y), kNan), im);
  return Complex(Select(IsZero(y), size, re), Select(IsZero(y), y, im));
}

Value Log(Value z) {
  // XLA rewrites log(pow(a, b)) to b log(|a|), which is finite where the power is not, and
  // log(exp(a)) to a. This select prevents both rewrites.
  Value w = Compiled("stablehlo.log", Select(Equal(z, z), z, FullLike(z, kNan)));
  return Complex(Select(Or(IsInfinite(Real(z)), IsInfinite(Imag(z))), kInfinity, Real(w)), Imag(w));
}

Value Logistic(Value z) {
  return complex_functions::Reciprocal(1 + complex_functions::Exponential(-z));
}

Value Power(Value x, Value y) {
  return complex_functions::Exponential(MultiplyByAnnexG(y, complex_functions::Log(x)));
}

/// The same as Divide, but without sums with a zero, which the compiler would replace by the other
/// summand.
Value Reciprocal(Value z) {
  Value c = Real(z), d = Imag(z);
  Value abs_c = stablehlo::Abs(c), abs_d = stablehlo::Abs(d);
  Value by_real = abs_c >= abs_d;
  Value ratio = Select(by_real, d / c, c / d);
  Value scale = 1 / Select(by_real, c + d * ratio, d + c * ratio);
  Value unsigned_zero = IsZero(ratio);
  Value real = Select(by_real, 1, Select(unsigned_zero, 0, ratio)) * scale;
  Value imag = Select(by_real, Select(unsigned_zero, 0, -ratio), FullLike(ratio, -1)) * scale;
  Value zero = And(IsZero(abs_c), IsZero(abs_d));
  return Complex(Select(zero, kInfinity, real), Select(zero, kNan, imag));
}

Value Sign(Value z) { return Select(Equal(z, 0), 0, Compiled("stablehlo.sign", z)); }

Value Sine(Value z) {
  Value w = complex_functions::Sinh(TimesI(z));
  Value undefined = And(IsInfinite(Imag(z)), NotFinite(Real(z)));
  return Complex(Imag(w), Select(undefined, kInfinity, -Real(w)));
}

Value Sinh(Value z) {
  Value x = Real(z), y = Imag(z), size = stablehlo::Abs(x);
  Value cosine = stablehlo::Cosine(y), sine = stablehlo::Sine(y);
  Value re = Select(IsLarge(size), HalfExponentialTimes(size, Select(x < 0, -cosine, cosine)),
                    stablehlo::Sinh(x) * cosine);
  Value im = Select(IsLarge(size), HalfExponentialTimes(size, sine), stablehlo::Cosh(x) * sine);
  re = Select(NotFinite(y), Select(IsInfinite(x), kInfinity, Select(IsZero(x), x, kNan)), re);
  return Complex(Select(And(IsZero(y), Not(IsFinite(x))), x, re), Select(IsZero(y), y, im));
}

Value Sqrt(Value z) {
  Value x = Real(z), y = Imag(z), w = ByUpperHalf("stablehlo.sqrt", z);
  Value half_known = And(IsInfinite(x), IsNan(y));  // one part of an infinity's root is known
  Value re = Select(IsInfinite(y), kInfinity, Select(half_known, Select(x > 0, x, y), Real(w)));
  Value im = Select(IsInfinite(y), y, Select(half_known, Select(x > 0, y, -x), Imag(w)));
  return Complex(re, im);
}

Value Tan(Value z) { return TimesMinusI(complex_functions::Tanh(TimesI(z))); }

Value Tanh(Value z) {
  Value x = Real(z), y = Imag(z), w = Compiled("stablehlo.tanh", z);
  Value turned = Select(IsFinite(y), stablehlo::Sine(y) * stablehlo::Cosine(y), y);
  Value re = Select(IsZero(x), x, Real(w));
  Value im = Select(IsZero(x), stablehlo::Tan(y), Imag(w));
  re = Select(IsZero(y), stablehlo::Tanh(x), re);
  im = Select(IsZero(y), y, im);
  re = Select(IsInfinite(x), CopySign(FullLike(x, 1), x), re);
  return Complex(re, Select(IsInfinite(x), CopySign(FullLike(x, 0), turned), im));
}

}  // namespace torch_xla::stablehlo::complex_functions
