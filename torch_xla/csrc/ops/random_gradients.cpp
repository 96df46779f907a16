// Gradients of samples of gamma and beta variables by their parameters, at a constant value of the
// distribution function. They are PyTorch's approximations (Jankowiak and Obermeyer 2018; the
// tables are those of its Distributions.h), each for a part of the plane.

#include "XLALowerings.h"
#include "lowering/elementwise.h"
#include "stablehlo/arithmetic.h"

namespace torch_xla::lowering {
namespace {

using namespace stablehlo;  // NOLINT: formulas

Value FiniteOrZero(Value x) { return Select(IsNan(x), 0, x); }

/// Taylor series for small x.
Value GammaGradientSmall(Value x, Value alpha) {
  Value numerator = FullLike(x, 1), denominator = alpha;
  Value series1 = 1 / alpha, series2 = 1 / (alpha * alpha);
  for (int i = 1; i <= 5; ++i) {
    numerator = numerator * -x / i;
    denominator = denominator + 1;
    series1 = series1 + numerator / denominator;
    series2 = series2 + numerator / (denominator * denominator);
  }
  Value power = Power(x, alpha);
  Value density = Power(x, alpha - 1) * Exponential(-x);
  Value by_alpha = (Log(x) - Digamma(alpha)) * power * series1 - power * series2;
  return FiniteOrZero(-by_alpha / density);
}

/// Rice's saddle point expansion for large alpha.
Value GammaGradientLarge(Value x, Value alpha) {
  Value near1 = 24 * alpha * (12 * alpha + 1) + 1;
  Value near2 = 1440 * (alpha * alpha) + 6 * x * (53 - 120 * x) - 65 * x * x / alpha +
                alpha * (3600 * x + 107);
  Value near = near1 * near2 / (1244160 * (alpha * alpha) * (alpha * alpha));
  Value root = Sqrt(8 * alpha), log = Log(x / alpha);
  Value term2 = root / (alpha - x);
  Value term3 = Power(x - alpha - alpha * log, FullLike(x, -1.5));
  Value term23 = Select(x < alpha, term2 - term3, term2 + term3);
  Value term1 = log * term23 - Sqrt(2 / alpha) * (alpha + x) / ((alpha - x) * (alpha - x));
  Value stirling = 1 / (12 * alpha) * (1 / (24 * alpha) + 1) + 1;
  Value is_near = And(0.9 * alpha <= x, x <= 1.1 * alpha);
  return Select(is_near, near, -stirling * x * term1 / root);
}

/// c[0] + x (c[1] + x (c[2] + …)).
template <typename Coefficient, size_t N>
Value Polynomial(Value x, const Coefficient (&c)[N]) {
  Value sum = x * c[N - 1] + c[N - 2];
  for (size_t i = N - 2; i-- > 0;) sum = x * sum + c[i];
  return sum;
}

/// A rational approximation in log(x / alpha) and log(alpha).
Value GammaGradientMiddle(Value x, Value alpha) {
  constexpr double kCoefficients[8][3] = {{0.16009398, 0.53487893, 0.040121004},
                                          {-0.094634809, 0.1298071, -0.0065914022},
                                          {0.025146376, 0.065735949, -0.0026286047},
                                          {-0.0030648343, -0.0015649758, -0.0013441777},
                                          {1, 0.16639465, 0.017050642},
                                          {0.32668115, 0.020070113, -0.0021309326},
                                          {0.10406089, -0.0035938915, 0.00085092367},
                                          {0.0014179084, -0.00058392623, -1.5247877e-07}};
  Value u = Log(x / alpha), v = Log(alpha);
  Value c[8];
  for (int i = 0; i < 8; ++i) c[i] = Polynomial(u, kCoefficients[i]);
  Value p = c[0] + v * (c[1] + v * (c[2] + v * c[3]));
  Value q = c[4] + v * (c[5] + v * (c[6] + v * c[7]));
  return Exponential(p / q);
}

/// The gradient by alpha for x near 0: a Taylor series.
Value BetaGradientNearZero(Value x, Value alpha, Value beta) {
  Value factor = Digamma(alpha) - Digamma(alpha + beta) - Log(x);
  Value numerator = FullLike(x, 1);
  Value series = 1 / alpha * (factor + 1 / alpha);
  for (int i = 1; i <= 10; ++i) {
    numerator = numerator * (i - beta) * x / i;
    Value denominator = alpha + i;
    series = series + numerator / denominator * (factor + 1 / denominator);
  }
  return FiniteOrZero(x * Power(1 - x, -beta) * series);
}

/// The gradient by beta for x near 0: a Taylor series.
Value BetaGradientByBetaNearZero(Value x, Value alpha, Value beta) {
  Value factor = Digamma(alpha + beta) - Digamma(beta);
  Value numerator = FullLike(x, 1), betas = FullLike(x, 1), dbetas = FullLike(x, 0);
  Value series = factor / alpha;
  for (int i = 1; i <= 8; ++i) {
    numerator = numerator * -x / i;
    dbetas = dbetas * (beta - i) + betas;
    betas = betas * (beta - i);
    series = series + numerator / (alpha + i) * (dbetas + factor * betas);
  }
  return FiniteOrZero(-Power(1 - x, 1 - beta) * series);
}

/// The gradient by alpha for large alpha and beta: Rice's saddle point expansion.
Value BetaGradientLarge(Value x, Value alpha, Value beta) {
  Value total = alpha + beta, mean = alpha / total;
  Value deviation = Sqrt(alpha * beta / (total + 1)) / total;
  Value beta2 = beta * beta;
  Value poly = 47 * x * beta2 * beta2 +
               alpha * ((20 * (27 * beta + 16) * x + 43) * beta2 * beta +
                        alpha * (3 * (180 * beta - 90 * x + 59) * beta2 +
                                 alpha * ((1620 * beta * (1 - x) - 455 * x + 453) * beta +
                                          alpha * (8 * (1 - x) * (135 * beta - 11)))));
  Value near_numerator = (12 * alpha + 1) * (12 * beta + 1) / (total * total);
  Value near_denominator = 12960 * alpha * alpha * alpha * beta2 * (12 * total + 1);
  Value near = near_numerator / (1 - x) * poly / near_denominator;
  auto stirling_of = [](Value y) { return 1 / (12 * y) + 1 / (288 * y * y) + 1; };
  Value stirling = stirling_of(alpha) * stirling_of(beta) / stirling_of(total);
  Value prefactor = -x / Sqrt(2 * alpha * beta / total);
  Value distance = alpha * (x - 1) + beta * x;
  Value term1 = (2 * (alpha * alpha) * (x - 1) + alpha * beta * (x - 1) - x * beta2) /
                (Sqrt(2 * alpha / beta) * Power(total, FullLike(x, 1.5)) * distance * distance);
  Value term2 = 0.5 * Log(alpha / (total * x));
  Value term3 = Sqrt(8 * alpha * beta / total) / distance;
  Value base = beta * Log(beta / (total * (1 - x))) + alpha * Log(alpha / (total * x));
  Value term4 = Power(base, FullLike(x, -1.5));
  Value far = stirling * prefactor * (term1 + term2 * (term3 + Select(x < mean, term4, -term4)));
  Value is_near = And(mean - 0.1 * deviation <= x, x <= mean + 0.1 * deviation);
  return Select(is_near, near, far);
}

/// The gradient by alpha elsewhere: a rational correction of an analytic approximation.
Value BetaGradientMiddle(Value x, Value alpha, Value total) {
  constexpr double kCoefficients[2][3][3][4] = {
      {{{1.003668233, -0.01061107488, -0.0657888334, 0.01201642863},
        {0.6336835991, -0.3557432599, 0.05486251648, -0.001465281033},
        {-0.03276231906, 0.004474107445, 0.002429354597, -0.0001557569013}},
       {{0.221950385, -0.3187676331, 0.01799915743, 0.01074823814},
        {-0.2951249643, 0.06219954479, 0.01535556598, 0.001550077057},
        {0.02155310298, 0.004170831599, 0.001292462449, 6.976601077e-05}},
       {{-0.05980841433, 0.008441916499, 0.01085618172, 0.002319392565},
        {0.02911413504, 0.01400243777, -0.002721828457, 0.000751041181},
        {0.005900514878, -0.001936558688, -9.495446725e-06, 5.385558597e-05}}},
      {{{1, -0.02924021934, -0.04438342661, 0.007285809825},
        {0.6357567472, -0.3473456711, 0.05454656494, -0.002407477521},
        {-0.03301322327, 0.004845219414, 0.00231480583, -0.0002307248149}},
       {{0.5925320577, -0.1757678135, 0.01505928619, 0.000564515273},
        {0.1014815858, -0.06589186703, 0.01272886114, -0.0007316646956},
        {-0.007258481865, 0.001096195486, 0.0003934994223, -4.12701925e-05}},
       {{0.06469649321, -0.0236701437, 0.002902096474, -5.896963079e-05},
        {0.001925008108, -0.002869809258, 0.0008000589141, -6.063713228e-05},
        {-0.0003477407336, 6.959756487e-05, 1.097287507e-05, -1.650964693e-06}}}};
  Value u = Log(x), a = Log(alpha) - u, b = Log(total) - a;
  Value parts[2];
  for (int side = 0; side < 2; ++side) {
    Value by_u[3];
    for (int i = 0; i < 3; ++i) {
      const auto& c = kCoefficients[side][i];
      by_u[i] = Polynomial(b, c[0]) + a * (Polynomial(b, c[1]) + a * Polynomial(b, c[2]));
    }
    parts[side] = by_u[0] + u * (by_u[1] + u * by_u[2]);
  }
  Value approximation = x * (Digamma(total) - Digamma(alpha)) / (total - alpha);
  return parts[0] / parts[1] * approximation;
}

}  // namespace

namespace aten {

Value _standard_gamma_grad(LoweringContext& cx, Value self, Value output) {
  const ElementType element = cx.Physical(c10::ScalarType::Double);
  Value alpha = Convert(self, element), x = Convert(output, element);
  Value grad = Select(alpha > 8, GammaGradientLarge(x, alpha), GammaGradientMiddle(x, alpha));
  return ToOutput(cx, Select(x < 0.8, GammaGradientSmall(x, alpha), grad));
}

Value _dirichlet_grad(LoweringContext& cx, Value self, Value concentration, Value sum) {
  const ElementType element = cx.Physical(c10::ScalarType::Double);
  const Dims dims = cx.output_dims();
  Value x = To(self, element, dims), alpha = To(concentration, element, dims);
  Value total = To(sum, element, dims), beta = total - alpha;
  Value boundary = total * x * (1 - x);
  Value grad = Select(And(alpha > 6, beta > 6), BetaGradientLarge(x, alpha, beta),
                      BetaGradientMiddle(x, alpha, total));
  grad =
      Select(And(x >= 0.5, boundary < 0.75), -BetaGradientByBetaNearZero(1 - x, beta, alpha), grad);
  grad = Select(And(x <= 0.5, boundary < 2.5), BetaGradientNearZero(x, alpha, beta), grad);
  return ToOutput(cx, grad);
}

}  // namespace aten
}  // namespace torch_xla::lowering
