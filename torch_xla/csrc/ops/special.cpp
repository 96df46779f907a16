// Special functions that StableHLO and CHLO lack, from the approximations of Cephes
// (cephes_tables.h).
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>

#include "XLALowerings.h"
#include "lowering/elementwise.h"
#include "ops/cephes_tables.h"
#include "ops/pointwise.h"
#include "stablehlo/arithmetic.h"

namespace torch_xla::lowering::aten {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kPi = std::numbers::pi;

template <size_t N>
Value Polynomial(Value x, const double (&coefficients)[N]) {
  Value sum = FullLike(x, coefficients[0]);
  for (size_t i = 1; i < N; ++i) sum = sum * x + coefficients[i];
  return sum;
}

/// Clenshaw's recurrence over [-2, 2], the interval that Cephes uses for its series.
template <size_t N>
Value Chebyshev(Value x, const double (&coefficients)[N]) {
  Value b0 = FullLike(x, coefficients[0]), b1 = ZerosLike(x), b2 = b1;
  for (size_t i = 1; i < N; ++i) {
    b2 = b1;
    b1 = b0;
    b0 = x * b1 - b2 + coefficients[i];
  }
  return (b0 - b2) * 0.5;
}

// ---- Bessel functions

/// Modulus and phase of Hankel's asymptotic form, for x > 5.
struct Hankel {
  Value cosine, sine;  // p cos(t) - q sin(t) and p sin(t) + q cos(t)
};

Hankel AsymptoticBessel(Value x, Value p, Value q, double shift) {
  Value t = x - shift;
  Value scale = std::sqrt(2 / kPi) * Rsqrt(x);
  q = 5 / x * q;
  Value sine = Sine(t), cosine = Cosine(t);
  return {(p * cosine - q * sine) * scale, (p * sine + q * cosine) * scale};
}

Hankel Hankel0(Value x) {
  using namespace cephes;
  Value z = 25 / (x * x);
  return AsymptoticBessel(x, Polynomial(z, kJ0Pp) / Polynomial(z, kJ0Pq),
                          Polynomial(z, kJ0Qp) / Polynomial(z, kJ0Qq), kPi / 4);
}

Hankel Hankel1(Value x) {
  using namespace cephes;
  Value z = 25 / (x * x);
  return AsymptoticBessel(x, Polynomial(z, kJ1Pp) / Polynomial(z, kJ1Pq),
                          Polynomial(z, kJ1Qp) / Polynomial(z, kJ1Qq), 3 * kPi / 4);
}

Value BesselJ0(Value self) {
  using namespace cephes;
  Value x = Abs(self), z = x * x;
  // The first zeros are factors, so that the result is exact near them.
  Value middle = (z - 5.78318596294678452118e+00) * (z - 3.04712623436620863991e+01) *
                 Polynomial(z, kJ0Rp) / Polynomial(z, kJ0Rq);
  Value small = Select(x < 1e-5, 1 - z / 4, middle);
  return Select(x <= 5, small, Hankel0(x).cosine);
}

Value BesselJ1(Value self) {
  using namespace cephes;
  Value x = Abs(self), z = x * x;
  // Multiply by the small factor last: an earlier product could underflow.
  Value small = Polynomial(z, kJ1Rp) / Polynomial(z, kJ1Rq) * (z - 1.46819706421238932572e+01) *
                (z - 4.92184563216946036703e+01) * x;
  Value value = Select(x <= 5, small, Hankel1(x).cosine);
  return Select(self < 0, -value, value);
}

/// `value`, with `at_zero` at 0 and NaN below.
Value ForPositive(Value x, Value value, double at_zero) {
  return Select(x < 0, kNan, Select(Equal(x, 0), at_zero, value));
}

Value BesselY0(Value x) {
  using namespace cephes;
  Value z = x * x;
  Value small = Polynomial(z, kY0Yp) / Polynomial(z, kY0Yq) + (2 / kPi) * Log(x) * BesselJ0(x);
  return ForPositive(x, Select(x <= 5, small, Hankel0(x).sine), -kInfinity);
}

Value BesselY1(Value x) {
  using namespace cephes;
  Value z = x * x;
  Value small = x * (Polynomial(z, kY1Yp) / Polynomial(z, kY1Yq)) +
                (2 / kPi) * (BesselJ1(x) * Log(x) - 1 / x);
  return ForPositive(x, Select(x <= 5, small, Hankel1(x).sine), -kInfinity);
}

/// exp(-|x|) I0(x).
Value ScaledI0(Value self) {
  Value x = Abs(self);
  return Select(x <= 8, Chebyshev(x / 2 - 2, cephes::kI0A),
                Chebyshev(32 / x - 2, cephes::kI0B) * Rsqrt(x));
}

/// exp(-|x|) I1(x).
Value ScaledI1(Value self) {
  Value x = Abs(self);
  Value value = Select(x <= 8, Chebyshev(x / 2 - 2, cephes::kI1A) * x,
                       Chebyshev(32 / x - 2, cephes::kI1B) * Rsqrt(x));
  return Select(self < 0, -value, value);
}

Value ModifiedI0(Value x) { return Exponential(Abs(x)) * ScaledI0(x); }
Value ModifiedI1(Value x) { return Exponential(Abs(x)) * ScaledI1(x); }

/// K0 and K1, multiplied by exp(x) if `scaled`.
Value ModifiedK0(Value x, bool scaled) {
  Value small = Chebyshev(x * x - 2, cephes::kK0A) - Log(0.5 * x) * ModifiedI0(x);
  Value large = Chebyshev(8 / x - 2, cephes::kK0B) * Rsqrt(x);
  Value value = scaled ? Select(x <= 2, small * Exponential(x), large)
                       : Select(x <= 2, small, Exponential(-x) * large);
  return ForPositive(x, value, kInfinity);
}

Value ModifiedK1(Value x, bool scaled) {
  Value small = Log(0.5 * x) * ModifiedI1(x) + Chebyshev(x * x - 2, cephes::kK1A) / x;
  Value large = Chebyshev(8 / x - 2, cephes::kK1B) * Rsqrt(x);
  Value value = scaled ? Select(x <= 2, small * Exponential(x), large)
                       : Select(x <= 2, small, Exponential(-x) * large);
  return ForPositive(x, value, kInfinity);
}

Value SphericalJ0(Value x) {
  Value z = x * x;
  // Near 0, where sin(x) / x is nearly 1, use its series.
  constexpr double kSeries[] = {1.0 / 6227020800, -1.0 / 39916800, 1.0 / 362880, -1.0 / 5040,
                                1.0 / 120,        -1.0 / 6,        1.0};
  Value value = Select(Abs(x) < 0.5, Polynomial(z, kSeries), Sine(x) / x);
  return Select(Equal(Abs(x), kInfinity), 0, value);
}

Value AiryAi(Value x) {
  using namespace cephes;
  const double inverse_sqrt_pi = std::numbers::inv_sqrtpi;
  // Far to the left the function oscillates.
  Value root = Sqrt(-x);
  Value zeta = -2 * x * root / 3;
  Value z = 1 / zeta, zz = z * z;
  Value t = zeta + kPi / 4;
  Value left = inverse_sqrt_pi * Rsqrt(root) *
               (Sine(t) * (1 + zz * Polynomial(zz, kAiryAfn) / Polynomial(zz, kAiryAfd)) -
                Cosine(t) * (z * Polynomial(zz, kAiryAgn) / Polynomial(zz, kAiryAgd)));
  // Far to the right it decays.
  root = Sqrt(x);
  zeta = 2 * x * root / 3;
  z = 1 / zeta;
  Value right = inverse_sqrt_pi * (Polynomial(z, kAiryAn) / Polynomial(z, kAiryAd)) /
                (2 * Sqrt(root) * Exponential(zeta));
  // Between them: the Maclaurin series, whose later terms are negligible.
  constexpr int kTerms = 13;
  Value cube = x * x * x;
  Value m = FullLike(x, 1), n = x, f = m, g = n;
  for (int i = 0; i < kTerms; ++i) {
    const double k = 3.0 * i;
    m = m * cube / ((k + 2) * (k + 3));
    n = n * cube / ((k + 3) * (k + 4));
    f = f + m;
    g = g + n;
  }
  Value middle = 0.355028053887817239260 * f - 0.258819403792806798405 * g;
  Value value = Select(x < -2.09, left, Select(x >= 2.09, right, middle));
  value = Select(x > 103.892, 0, value);
  return Select(Equal(Abs(x), kInfinity), kNan, value);
}

// ---- The normal distribution

/// exp(x^2) erfc(x).
Value Erfcx(Value self) {
  using namespace cephes;
  Value x = Abs(self), square = x * x;
  Value middle = Polynomial(x, kErfcP) / Polynomial(x, kErfcQ);
  // Polynomials of 1 / x, which do not overflow.
  Value r = 1 / x;
  auto reversed = [&](auto& coefficients) {
    double c[std::extent_v<std::remove_reference_t<decltype(coefficients)>>];
    std::reverse_copy(std::begin(coefficients), std::end(coefficients), std::begin(c));
    return Polynomial(r, c);
  };
  Value large = r * reversed(kErfcR) / reversed(kErfcS);
  Value value = Select(x < 1, Exponential(square) * Erfc(x), Select(x < 8, middle, large));
  return Select(self < 0, 2 * Exponential(square) - value, value);
}

Value Ndtri(Value p) {
  using namespace cephes;
  constexpr double kExpMinus2 = 0.13533528323661269189;
  Value upper = p > 1 - kExpMinus2;
  Value y = Select(upper, 1 - p, p);
  Value centered = y - 0.5, square = centered * centered;
  Value center =
      centered + centered * (square * Polynomial(square, kNdtriP0) / Polynomial(square, kNdtriQ0));
  Value x = Sqrt(-2 * Log(y));
  Value z = 1 / x;
  Value correction = Select(x < 8, z * Polynomial(z, kNdtriP1) / Polynomial(z, kNdtriQ1),
                            z * Polynomial(z, kNdtriP2) / Polynomial(z, kNdtriQ2));
  Value tail = x - Log(x) / x - correction;
  Value value = Select(y > kExpMinus2, center * std::sqrt(2 * kPi), Select(upper, tail, -tail));
  value = Select(Equal(p, 0), -kInfinity, Select(Equal(p, 1), kInfinity, value));
  return Select(Or(p < 0, p > 1), kNan, value);
}

Value LogNdtr(Value x) {
  Value t = x * std::numbers::sqrt2 / 2.0;
  return Select(x < -1, Log(Erfcx(-t) / 2) - t * t, LogPlusOne(-Erfc(t) / 2));
}

// ---- Orthogonal polynomials

/// A family of polynomials: its degree 1, and its recurrence r = next(i, q, p) for i >= 2.
struct Family {
  Value first;  // the polynomial of degree 1
  std::function<Value(Value i, Value q, Value p)> next;
  /// Where the value is known without the recurrence, and that value.
  Value known, known_value;
};

Value IsEven(Value n) { return Equal(And(n, FullLike(n, 1)), 0); }

/// The degree as an integer. An invalid degree becomes -1, whose polynomial is 0.
Value Degree(Value n) { return Convert(Select(Abs(n) < 0x1p63, n, -1), ElementType::kS64); }

Value PolynomialOfDegree(Value x, Value n, const Family& family) {
  // Degrees differ by element, so iterate until the largest degree is reached.
  const Dims all = DimsBetween(0, n.rank());
  auto last = [&](Value q) {
    Value done = Or(family.known, IsNan(q));
    return Reduce(Select(done, -1, n), all, ReduceOp::kMax);
  };
  Value two = ScalarLike(n, 2);
  std::vector<Value> state = {two, last(family.first), FullLike(x, 1), family.first};
  state = stablehlo::While(
      state, [](std::span<const Value> s) -> std::vector<Value> { return {s[0] <= s[1]}; },
      [&](std::span<const Value> s) -> std::vector<Value> {
        Value i = s[0], p = s[2], q = s[3];
        Value r = family.next(BroadcastTo(Convert(i, x.element()), x.dims()), q, p);
        Value active = i <= n;
        p = Select(active, q, p);
        q = Select(active, r, q);
        return {i + 1, last(q), p, q};
      });
  Value value = Select(Equal(n, 0), 1, state[3]);
  return Select(n < 0, 0, Select(family.known, family.known_value, value));
}

enum class ChebyshevKind { kT, kU, kV, kW };

/// Above degree `closed_above` uses the definition by cosines for x in (-1, 1).
Value ChebyshevPolynomial(Value x, Value degree, ChebyshevKind kind, int64_t closed_above) {
  Value n = Degree(degree), real = Convert(n, x.element());
  Value even = IsEven(n), positive = x > 0, angle = Acos(x);
  Value sign = Select(even, FullLike(x, 1), -1);
  Value odd = real + real + 1;  // 2 n + 1
  Family family;
  Value at_one, inside;
  switch (kind) {
    case ChebyshevKind::kT:
      family.first = x;
      at_one = Select(positive, 1, sign);
      inside = Cosine(real * angle);
      break;
    case ChebyshevKind::kU: {
      family.first = x + x;
      at_one = Select(positive, real + 1, sign * (real + 1));
      Value sine = Sine(angle);
      inside = Select(NotEqual(sine, 0), Sine((real + 1) * angle) / sine,
                      (real + 1) * Cosine((real + 1) * angle) / x);
      break;
    }
    case ChebyshevKind::kV:
      family.first = x + x - 1;
      at_one = Select(positive, 1, sign * odd);
      inside = Select(NotEqual(Sine(angle / 2), 1),
                      Cosine((real + 0.5) * angle) / Cosine(angle / 2), sign * odd);
      break;
    case ChebyshevKind::kW:
      family.first = x + x + 1;
      at_one = Select(positive, odd, sign);
      inside = Select(NotEqual(Cosine(angle / 2), 1), Sine((real + 0.5) * angle) / Sine(angle / 2),
                      at_one);
      break;
  }
  family.next = [x](Value, Value q, Value p) { return (x + x) * q - p; };
  Value ends = Equal(Abs(x), 1);
  family.known = Or(ends, And(n > closed_above, Abs(x) < 1));
  family.known_value = Select(ends, at_one, inside);
  return PolynomialOfDegree(x, n, family);
}

Value LowerChebyshev(LoweringContext& cx, Value self, Value degree, ChebyshevKind kind,
                     int64_t closed_above, bool shifted) {
  auto [x, n] = ToCompute(cx, self, degree);
  if (shifted) x = x + x - 1;
  return ToOutput(cx, ChebyshevPolynomial(x, n, kind, closed_above));
}

// ---- The zeta function of Hurwitz

/// Sums terms until the argument is past 9, then uses the Euler-Maclaurin formula, as Cephes does.
/// CHLO's function is wrong below 0.
Value HurwitzZeta(LoweringContext& cx, Value exponent, Value start) {
  // (2k)! / B_2k
  constexpr double kDivisors[] = {12,
                                  -720,
                                  30240,
                                  -1209600,
                                  47900160,
                                  -1.8924375803183791606e9,
                                  7.47242496e10,
                                  -2.950130727918164224e12,
                                  1.1646782814350067249e14,
                                  -4.5979787224074726105e15,
                                  1.8152105401943546773e17,
                                  -7.1661652561756670113e18};
  const ElementType wide = cx.Physical(c10::ScalarType::Double);
  Value x = Convert(exponent, wide), q = Convert(start, wide);
  Value pole = And(q <= 0, Equal(q, Floor(q)));
  Value undefined = Or(x < 1, And(And(q <= 0, Not(pole)), NotEqual(x, Floor(x))));
  Value known = Or(Or(pole, undefined), Or(IsNan(q), Equal(x, 1)));
  const Dims all = DimsBetween(0, x.rank());
  Value first = Select(known, 10, q);
  Value term = Power(first, -x);
  std::vector<Value> state = stablehlo::While(
      {ScalarLike(x, 0), first, term, term},
      [&](std::span<const Value> s) -> std::vector<Value> {
        return {Or(s[0] < 9, Reduce(s[1] <= 9, all, ReduceOp::kOr))};
      },
      [&](std::span<const Value> s) -> std::vector<Value> {
        Value active = Or(BroadcastTo(s[0] < 9, x.dims()), s[1] <= 9);
        Value next = Select(active, s[1] + 1, s[1]);
        Value b = Power(next, -x);
        return {s[0] + 1, next, Select(active, s[2] + b, s[2]), b};
      });
  Value w = state[1], sum = state[2], b = state[3];
  sum = sum + b * w / (x - 1) - 0.5 * b;
  Value factor = FullLike(x, 1);
  double k = 0;
  for (double divisor : kDivisors) {
    factor = factor * (x + k);
    b = b / w;
    sum = sum + factor * b / divisor;
    factor = factor * (x + (k + 1));
    b = b / w;
    k += 2;
  }
  // Far out every term is 0, but infinite factors would make it NaN. At infinity as Cephes.
  Value infinite = And(Equal(state[2], 0), Or(Equal(x, kInfinity), Equal(q, kInfinity)));
  sum = Select(Equal(state[2], state[2] + state[3]), state[2], sum);
  Value nan = Or(Or(IsNan(x), IsNan(q)), Or(undefined, infinite));
  sum = Select(pole, kInfinity, Select(nan, kNan, sum));
  return Select(Equal(x, 1), kInfinity, Select(x < 1, kNan, sum));
}

// ---- Bits of floats

struct FloatFormat {
  ElementType bits;
  int64_t width, mantissa, bias;
};

FloatFormat FormatOf(ElementType element) {
  return element == ElementType::kF64 ? FloatFormat{ElementType::kS64, 64, 52, 1023}
                                      : FloatFormat{ElementType::kS32, 32, 23, 127};
}

}  // namespace

#define TORCH_XLA_SPECIAL_UNARY(name, formula)  \
  Value name(LoweringContext& cx, Value self) { \
    auto [x] = ToCompute(cx, self);             \
    return ToOutput(cx, formula);               \
  }

TORCH_XLA_SPECIAL_UNARY(i0, ModifiedI0(x))
TORCH_XLA_SPECIAL_UNARY(special_airy_ai, AiryAi(x))
TORCH_XLA_SPECIAL_UNARY(special_bessel_j0, BesselJ0(x))
TORCH_XLA_SPECIAL_UNARY(special_bessel_j1, BesselJ1(x))
TORCH_XLA_SPECIAL_UNARY(special_bessel_y0, BesselY0(x))
TORCH_XLA_SPECIAL_UNARY(special_bessel_y1, BesselY1(x))
TORCH_XLA_SPECIAL_UNARY(special_erfcx, Erfcx(x))
TORCH_XLA_SPECIAL_UNARY(special_i0e, ScaledI0(x))
TORCH_XLA_SPECIAL_UNARY(special_i1, ModifiedI1(x))
TORCH_XLA_SPECIAL_UNARY(special_i1e, ScaledI1(x))
TORCH_XLA_SPECIAL_UNARY(special_log_ndtr, LogNdtr(x))
TORCH_XLA_SPECIAL_UNARY(special_modified_bessel_i0, ModifiedI0(x))
TORCH_XLA_SPECIAL_UNARY(special_modified_bessel_i1, ModifiedI1(x))
TORCH_XLA_SPECIAL_UNARY(special_modified_bessel_k0, ModifiedK0(x, /*scaled=*/false))
TORCH_XLA_SPECIAL_UNARY(special_modified_bessel_k1, ModifiedK1(x, /*scaled=*/false))
TORCH_XLA_SPECIAL_UNARY(special_ndtri, Ndtri(x))
TORCH_XLA_SPECIAL_UNARY(special_scaled_modified_bessel_k0, ModifiedK0(x, /*scaled=*/true))
TORCH_XLA_SPECIAL_UNARY(special_scaled_modified_bessel_k1, ModifiedK1(x, /*scaled=*/true))
TORCH_XLA_SPECIAL_UNARY(special_spherical_bessel_j0, SphericalJ0(x))
#undef TORCH_XLA_SPECIAL_UNARY

Value special_entr(LoweringContext& cx, Value self) {
  auto [x] = ToCompute(cx, self);
  Value value = Select(x > 0, -x * Log(x), Select(Equal(x, 0), FullLike(x, 0), -kInfinity));
  return ToOutput(cx, Select(IsNan(x), x, value));
}

Value special_xlog1py(LoweringContext& cx, Value self, Value other) {
  auto [x, y] = ToCompute(cx, self, other);
  Value value = Select(Equal(x, 0), 0, x * LogPlusOne(y));
  return ToOutput(cx, Select(IsNan(y), kNan, value));
}

Value special_zeta(LoweringContext& cx, Value self, Value other) {
  auto [x, q] = ToCompute(cx, self, other);
  return ToOutput(cx, HurwitzZeta(cx, x, q));
}

Value polygamma(LoweringContext& cx, const Number& number, Value self) {
  auto [x] = ToCompute(cx, self);
  // The zeta function has no value at infinity, where the trigamma function is 0, and NaN at -inf.
  auto trigamma = [x](Value value) {
    return Select(IsInf(x), Convert(Select(x > 0, 0, FullLike(x, kNan)), value.element()), value);
  };
  if (!number.constant()) {
    Value zeta = HurwitzZeta(cx, number.Like(x) + 1, x);
    Value n = number.Like(zeta), odd = Equal(stablehlo::Remainder(n, FullLike(n, 2)), 1);
    Value factorial = Exponential(stablehlo::Lgamma(n + 1));
    Value value = zeta * Select(odd, factorial, -factorial);
    value = Select(Equal(n, 1), trigamma(value), value);
    return ToOutput(cx, Select(Equal(n, 0), Convert(digamma(cx, self), n.element()), value));
  }
  const int64_t n = number.constant()->toLong();
  if (n == 0) return digamma(cx, self);
  if (n == 1) {
    if (const auto called = CallPointwise(cx, {x})) return ToOutput(cx, *called);
  }
  const double factorial = std::tgamma(static_cast<double>(n) + 1);
  Value value = HurwitzZeta(cx, FullLike(x, n + 1), x) * (n % 2 ? factorial : -factorial);
  return ToOutput(cx, n == 1 ? trigamma(value) : value);
}

Value sinc(LoweringContext& cx, Value self) {
  auto [x] = ToCompute(cx, self);
  Value t = x * kPi;
  return ToOutput(cx, Select(Equal(x, 0), 1, Sine(t) / t));
}

#define TORCH_XLA_CHEBYSHEV(kind, KIND, closed_above, shifted_closed_above)                       \
  Value special_chebyshev_polynomial_##kind(LoweringContext& cx, Value x, Value n) {              \
    return LowerChebyshev(cx, x, n, ChebyshevKind::KIND, closed_above, /*shifted=*/false);        \
  }                                                                                               \
  Value special_shifted_chebyshev_polynomial_##kind(LoweringContext& cx, Value x, Value n) {      \
    return LowerChebyshev(cx, x, n, ChebyshevKind::KIND, shifted_closed_above, /*shifted=*/true); \
  }

TORCH_XLA_CHEBYSHEV(t, kT, 6, 6)
TORCH_XLA_CHEBYSHEV(u, kU, 8, 6)
TORCH_XLA_CHEBYSHEV(v, kV, 8, 6)
TORCH_XLA_CHEBYSHEV(w, kW, 8, 4)
#undef TORCH_XLA_CHEBYSHEV

Value Hermite(LoweringContext& cx, bool physicist, Value self, Value degree) {
  auto [x, d] = ToCompute(cx, self, degree);
  Value n = Degree(d);
  Family family;
  const double scale = physicist ? 2 : 1;
  family.first = x * scale;
  family.next = [x, scale](Value i, Value q, Value p) {
    return x * scale * q - (i - 1) * scale * p;
  };
  // As in PyTorch: polynomials of larger degrees overflow.
  family.known = n > (x.element() == ElementType::kF64 ? 512 : 128);
  family.known_value = FullLike(x, kNan);
  return ToOutput(cx, PolynomialOfDegree(x, n, family));
}

Value special_laguerre_polynomial_l(LoweringContext& cx, Value self, Value degree) {
  auto [x, d] = ToCompute(cx, self, degree);
  Family family;
  family.first = 1 - x;
  family.next = [x = x](Value i, Value q, Value p) {
    Value k = i - 1;
    return ((k + k + (1 - x)) * q - k * p) / i;
  };
  family.known = Equal(x, 0);
  family.known_value = FullLike(x, 1);
  return ToOutput(cx, PolynomialOfDegree(x, Degree(d), family));
}

Value special_legendre_polynomial_p(LoweringContext& cx, Value self, Value degree) {
  auto [x, d] = ToCompute(cx, self, degree);
  Value n = Degree(d);
  Family family;
  family.first = x;
  family.next = [x = x](Value i, Value q, Value p) {
    Value k = i - 1;
    return ((k + k + 1) * x * q - k * p) / i;
  };
  family.known = Equal(Abs(x), 1);
  family.known_value = Select(Or(x > 0, IsEven(n)), FullLike(x, 1), -1);
  return ToOutput(cx, PolynomialOfDegree(x, n, family));
}

// ---- Decomposing and composing numbers

Value angle(LoweringContext& cx, Value self) {
  if (runtime::IsComplex(self.element())) return Atan2(Imag(self), Real(self));
  auto [x] = ToCompute(cx, self);
  return ToOutput(cx, Select(IsNan(x), x, Select(x < 0, FullLike(x, kPi), 0)));
}

Value complex(LoweringContext& cx, Value real, Value imag) {
  const Dims dims = cx.output_dims();
  return Complex(BroadcastTo(real, dims), BroadcastTo(imag, dims));
}

Value polar(LoweringContext& cx, Value abs, Value angle) {
  const Dims dims = cx.output_dims();
  Value r = BroadcastTo(abs, dims), t = BroadcastTo(angle, dims);
  return Complex(r * Cosine(t), r * Sine(t));
}

Value signbit(LoweringContext& cx, Value self) {
  if (runtime::IsFloat(self.element())) {
    return IsNegative(Convert(self, ComputeType(self.element())));  // which keeps the sign of NaN
  }
  if (runtime::IsSigned(self.element())) return self < 0;
  return Constant(cx.builder(), false, cx.output_type());
}

std::vector<Value> frexp_Tensor(LoweringContext& cx, Value self) {
  auto [x] = ToCompute(cx, self);
  const FloatFormat format = FormatOf(x.element());
  const int64_t hidden = int64_t{1} << format.mantissa;
  Value bits = BitcastConvert(x, format.bits);
  auto mask = [&](int64_t value) { return FullLike(bits, value); };
  Value fraction = And(bits, mask(hidden - 1));
  const int64_t largest = (int64_t{1} << (format.width - 1 - format.mantissa)) - 1;
  Value exponent = And(ShiftRightLogical(bits, mask(format.mantissa)), mask(largest));
  Value denormal = Equal(exponent, 0);
  // Zeros, infinities and NaN are their own mantissas.
  Value whole = Or(And(denormal, Equal(fraction, 0)), Equal(exponent, largest));
  // Use no arithmetic on denormals, since the device may flush them.
  Value shift = CountLeadingZeros(fraction) - (format.width - 1 - format.mantissa);
  fraction = Select(denormal, And(ShiftLeft(fraction, shift), mask(hidden - 1)), fraction);
  Value sign = And(bits, mask(std::numeric_limits<int64_t>::min() >> (64 - format.width)));
  Value half = mask((format.bias - 1) << format.mantissa);
  Value mantissa = BitcastConvert(Or(Or(sign, half), fraction), x.element());
  Value power = Select(denormal, 2 - format.bias - shift, exponent - (format.bias - 1));
  return {Convert(Select(whole, x, mantissa), cx.output_element(0)),
          Convert(Select(whole, 0, power), ElementType::kS32)};
}

Value ldexp_Tensor(LoweringContext& cx, Value self, Value other) {
  auto [x] = ToCompute(cx, self);
  // 2 ** other may be out of range where the product is not. So multiply by it in three parts,
  // whose bits are made from their exponents.
  const FloatFormat format = FormatOf(x.element());
  const int64_t most = 3 * (format.bias - 1);
  const bool wide = runtime::ByteWidth(other.element()) == 8;
  Value n = Convert(other, wide ? ElementType::kS64 : ElementType::kS32);
  n = To(Minimum(Maximum(n, -most), most), format.bits, cx.output_dims());
  Value third = n / FullLike(n, 3), half = (n - third) / FullLike(n, 2);
  for (Value part : {third, half, n - third - half}) {
    x = x *
        BitcastConvert(ShiftLeft(part + format.bias, FullLike(n, format.mantissa)), x.element());
  }
  return ToOutput(cx, x);
}

// ---- Integers

Value gcd(LoweringContext& cx, Value self, Value other) {
  auto absolute = [](Value x) { return runtime::IsUnsigned(x.element()) ? x : Abs(x); };
  Value a = absolute(ToOutput(cx, self)), b = absolute(ToOutput(cx, other));
  const Dims all = DimsBetween(0, a.rank());
  return stablehlo::While(
      {a, b},
      [&](std::span<const Value> s) -> std::vector<Value> {
        return {Reduce(NotEqual(s[0], 0), all, ReduceOp::kOr)};
      },
      [](std::span<const Value> s) -> std::vector<Value> {
        Value done = Equal(s[0], 0);
        Value rest = Remainder(s[1], Select(done, 1, s[0]));
        return {Select(done, 0, rest), Select(done, s[1], s[0])};
      })[1];
}

Value lcm(LoweringContext& cx, Value self, Value other) {
  Value divisor = gcd(cx, self, other);
  Value none = Equal(divisor, 0);
  Value product = ToOutput(cx, self) / Select(none, 1, divisor) * ToOutput(cx, other);
  if (!runtime::IsUnsigned(product.element())) product = Abs(product);
  return Select(none, 0, product);
}

}  // namespace torch_xla::lowering::aten
