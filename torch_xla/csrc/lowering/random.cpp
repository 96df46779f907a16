// Counter-based generators (Philox): the numbers depend on the seed alone.
#include "lowering/random.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "XLALowerings.h"
#include "ir/attributes.h"
#include "lowering/elementwise.h"
#include "lowering/reduction.h"
#include "stablehlo/arithmetic.h"

namespace torch_xla::lowering {
namespace {

using namespace stablehlo;  // NOLINT: formulas

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Value Seed(LoweringContext& cx, const ir::Node& node) { return cx.Lowered(node.operands()[0]); }

/// Random bits, as many as are asked for one after the other.
class Stream {
 public:
  explicit Stream(Value state) : state_(state) {}
  Stream(LoweringContext& cx, const ir::Node& node) {
    Value seed = Reshape(Convert(Seed(cx, node), ElementType::kU64), {1});
    state_ = Concatenate({seed, ZerosLike(seed)}, 0);
  }

  Value state() const { return state_; }

  /// Uniform bits of an unsigned type.
  Value Bits(ElementType element, const Dims& dims) {
    auto [state, bits] = RngBitGenerator(state_, RngAlgorithm::kPhilox, {element, dims});
    state_ = state;
    return bits;
  }

  /// Uniform in [0, 1) with as many bits as the type's mantissa holds; with `centered`, in
  /// (0, 1), half a step from both ends.
  Value Uniform(ElementType element, const Dims& dims, bool centered = false) {
    const bool wide = element == ElementType::kF64;
    Value bits = Bits(wide ? ElementType::kU64 : ElementType::kU32, dims);
    // With the half step one bit less: 2^24 - 0.5 has no float32.
    const int kept = (wide ? 53 : 24) - (centered ? 1 : 0);
    bits = ShiftRightLogical(bits, FullLike(bits, (wide ? 64 : 32) - kept));
    Value x = Convert(bits, wide ? ElementType::kF64 : ElementType::kF32);
    return (centered ? x + 0.5 : x) * std::ldexp(1.0, -kept);
  }

  /// By the inverse of the distribution function: sqrt(2) erfinv(2u - 1).
  Value Normal(ElementType element, const Dims& dims) {
    return ErfInv(Uniform(element, dims, /*centered=*/true) * 2 - 1) * std::sqrt(2.0);
  }

 private:
  Value state_;
};

/// The type to compute a float output in.
ElementType FloatFor(LoweringContext& cx) {
  return cx.output_element() == ElementType::kF64 ? ElementType::kF64 : ElementType::kF32;
}

Value OperandTo(LoweringContext& cx, const ir::Node& node, size_t i, ElementType element,
                const Dims& dims) {
  return To(cx.Lowered(node.operands()[i]), element, dims);
}

struct Proposal {
  Value accepted, value;
};

/// Draws until every element is accepted or `done` from the start (which keeps `value`).
template <typename Propose>
Value UntilAccepted(Stream& stream, Value done, Value value, const Propose& propose) {
  // What should be accepted sooner or later is; the bound is against what has no numbers.
  constexpr int kLimit = 1000;
  Dims all(done.rank());
  std::iota(all.begin(), all.end(), 0);
  auto more = [&](std::span<const Value> v) -> std::vector<Value> {
    return {And(v[0] < kLimit, Not(Reduce(v[2], all, ReduceOp::kAnd)))};
  };
  auto draw = [&](std::span<const Value> v) -> std::vector<Value> {
    Stream next(v[1]);
    const Proposal proposal = propose(next);
    Value takes = And(Not(v[2]), proposal.accepted);
    return {v[0] + 1, next.state(), Or(v[2], takes), Select(takes, proposal.value, v[3])};
  };
  Value zero = Scalar(value, 0, ElementType::kS32);
  std::vector<Value> results = While({zero, stream.state(), done, value}, more, draw);
  stream = Stream(results[1]);
  return results[3];
}

/// The least k whose cumulated probability reaches `u`. `first` is the probability of 0,
/// ratio(k) that of k over that of k - 1.
template <typename Ratio>
Value Inverted(Value u, Value first, const Ratio& ratio) {
  constexpr int kLimit = 1000;  // rounding may keep the sum below u
  Dims all(u.rank());
  std::iota(all.begin(), all.end(), 0);
  auto more = [&](std::span<const Value> v) -> std::vector<Value> {
    return {And(v[0] < kLimit, Reduce(And(u > v[3], v[2] > 0), all, ReduceOp::kOr))};
  };
  auto add = [&](std::span<const Value> v) -> std::vector<Value> {
    Value open = And(u > v[3], v[2] > 0);
    Value next = v[0] + 1;
    Value probability = v[2] * ratio(BroadcastTo(Convert(next, u.element()), u.dims()));
    return {next, Select(open, v[1] + 1, v[1]), Select(open, probability, v[2]),
            Select(open, v[3] + probability, v[3])};
  };
  return While({Scalar(u, 0, ElementType::kS32), ZerosLike(u), first, first}, more, add)[1];
}

}  // namespace

void LowerRandomUniform(LoweringContext& cx, const ir::Node& node) {
  const ElementType element = FloatFor(cx);
  const Dims dims = cx.output_dims();
  Value u = Stream(cx, node).Uniform(element, dims);
  Value from = OperandTo(cx, node, 1, element, dims), to = OperandTo(cx, node, 2, element, dims);
  cx.SetOutputs(node, ToOutputElement(cx, from + u * (to - from)));
}

void LowerRandomNormal(LoweringContext& cx, const ir::Node& node) {
  const ElementType element = FloatFor(cx);
  const Dims dims = cx.output_dims();
  Value x = Stream(cx, node).Normal(element, dims);
  Value mean = OperandTo(cx, node, 1, element, dims), std = OperandTo(cx, node, 2, element, dims);
  cx.SetOutputs(node, ToOutputElement(cx, mean + x * std));
}

void LowerRandomInteger(LoweringContext& cx, const ir::Node& node) {
  const Dims dims = cx.output_dims();
  Value from = OperandTo(cx, node, 1, ElementType::kU64, dims);
  Value to = OperandTo(cx, node, 2, ElementType::kU64, dims);
  // Modulo, as PyTorch's own random_; its bias is below 2^-32 for ranges below 2^32.
  Value x = Remainder(Stream(cx, node).Bits(ElementType::kU64, dims), to - from) + from;
  cx.SetOutputs(node, ToOutputElement(cx, BitcastConvert(x, ElementType::kS64)));
}

void LowerRandomBernoulli(LoweringContext& cx, const ir::Node& node) {
  const Dims dims = cx.output_dims();
  Value u = Stream(cx, node).Uniform(ElementType::kF32, dims);
  Value p = OperandTo(cx, node, 1, ElementType::kF32, dims);
  cx.SetOutputs(node, ToOutputElement(cx, u < p));
}

void LowerRandomExponential(LoweringContext& cx, const ir::Node& node) {
  const ElementType element = FloatFor(cx);
  const Dims dims = cx.output_dims();
  Value u = Stream(cx, node).Uniform(element, dims, /*centered=*/true);
  cx.SetOutputs(node, ToOutputElement(cx, -Log(u) / OperandTo(cx, node, 1, element, dims)));
}

void LowerRandomPoisson(LoweringContext& cx, const ir::Node& node) {
  const ElementType element = cx.Physical(c10::ScalarType::Double);
  const Dims dims = cx.output_dims();
  Stream stream(cx, node);
  Value rate = OperandTo(cx, node, 1, element, dims);
  // Small rates by inversion, the others by transformed rejection (PTRS, Hoermann 1993).
  Value large = rate >= 10;
  Value small_rate = Select(And(rate >= 0, Not(large)), rate, 0);
  Value small = Inverted(stream.Uniform(element, dims, true), Exponential(-small_rate),
                         [&](Value k) { return small_rate / k; });
  Value done = Not(And(large, rate < kInfinity));
  Value mean = Select(done, 10, rate);
  Value b = Sqrt(mean) * 2.53 + 0.931, a = b * 0.02483 - 0.059;
  Value inverse_alpha = 1.1328 / (b - 3.4) + 1.1239, limit = 0.9277 - 3.6224 / (b - 2);
  Value result = UntilAccepted(stream, done, small, [&](Stream& draw) -> Proposal {
    Value u = draw.Uniform(element, dims, true) - 0.5, v = draw.Uniform(element, dims, true);
    Value us = 0.5 - Abs(u);
    Value k = Floor((2 * a / us + b) * u + mean + 0.43);
    Value fast = And(us >= 0.07, v <= limit);
    Value out = Or(k < 0, And(us<0.013, v> us));
    Value exact =
        Log(v * inverse_alpha / (a / (us * us) + b)) <= k * Log(mean) - mean - Lgamma(k + 1);
    return {Or(fast, And(Not(out), exact)), k};
  });
  result = Select(Equal(rate, kInfinity), rate, Select(rate >= 0, result, kNan));
  cx.SetOutputs(node, ToOutputElement(cx, result));
}

void LowerRandomBinomial(LoweringContext& cx, const ir::Node& node) {
  const ElementType element = cx.Physical(c10::ScalarType::Double);
  const Dims dims = cx.output_dims();
  Stream stream(cx, node);
  Value n = OperandTo(cx, node, 1, element, dims), p = OperandTo(cx, node, 2, element, dims);
  // Failures are counted where success is likelier. Small means by inversion, the others by
  // transformed rejection (BTRS, Hoermann 1993).
  Value flipped = p > 0.5;
  Value q = Select(flipped, 1 - p, p);
  Value large = And(n * q >= 10, n < kInfinity);
  Value some = And(n > 0, q > 0);
  Value small_n = Select(And(some, Not(large)), n, 0),
        small_q = Select(And(some, Not(large)), q, 0);
  Value small_odds = small_q / (1 - small_q);
  Value small =
      Inverted(stream.Uniform(element, dims, true), Exponential(small_n * LogPlusOne(-small_q)),
               [&](Value k) { return Maximum(small_n - k + 1, 0) / k * small_odds; });
  Value count = Select(large, n, 100), chance = Select(large, q, 0.5);
  Value deviation = Sqrt(count * chance * (1 - chance));
  Value b = deviation * 2.53 + 1.15, a = b * 0.0248 + chance * 0.01 - 0.0873;
  Value limit = 0.92 - 4.2 / b, odds = chance / (1 - chance);
  Value alpha = (5.1 / b + 2.83) * deviation, mode = Floor((count + 1) * chance);
  auto log_ways = [&](Value k) { return -Lgamma(k + 1) - Lgamma(count - k + 1); };
  Value result = UntilAccepted(stream, Not(large), small, [&](Stream& draw) -> Proposal {
    Value u = draw.Uniform(element, dims, true) - 0.5, v = draw.Uniform(element, dims, true);
    Value us = 0.5 - Abs(u);
    Value k = Floor((2 * a / us + b) * u + count * chance + 0.5);
    Value inside = And(k >= 0, k <= count);
    Value fast = And(us >= 0.07, v <= limit);
    Value ratio = log_ways(k) - log_ways(mode) + (k - mode) * Log(odds);
    Value exact = Log(v * alpha / (a / (us * us) + b)) <= ratio;
    return {And(inside, Or(fast, exact)), k};
  });
  result = Select(some, Minimum(result, n), 0);
  result = Select(flipped, n - result, result);
  result = Select(n > 0, result, 0);
  result = Select(Or(IsNan(n), IsNan(p)), kNan, result);
  cx.SetOutputs(node, ToOutputElement(cx, result));
}

void LowerRandomGamma(LoweringContext& cx, const ir::Node& node) {
  const ElementType element = FloatFor(cx);
  const Dims dims = cx.output_dims();
  Stream stream(cx, node);
  Value alpha = OperandTo(cx, node, 1, element, dims);
  // Rejection from a transformed normal (Marsaglia and Tsang 2000); below 1, a sample of
  // alpha + 1 times a uniform to the power of 1 / alpha.
  Value below = alpha < 1, valid = And(alpha > 0, alpha < kInfinity);
  Value d = Select(valid, Select(below, alpha + 1, alpha), 1) - 1.0 / 3;
  Value c = Rsqrt(d * 9);
  Value power = Power(stream.Uniform(element, dims, true), 1 / Select(valid, alpha, 1));
  Value boost = Select(below, power, 1);
  Value result = UntilAccepted(stream, Not(valid), alpha, [&](Stream& draw) -> Proposal {
    Value x = draw.Normal(element, dims), u = draw.Uniform(element, dims, true);
    Value v = c * x + 1;
    v = v * v * v;
    Value bound = x * x * 0.5 + d * (1 - v + Log(Maximum(v, 1e-30)));
    return {And(v > 0, Log(u) < bound), d * v * boost};
  });
  // PyTorch's samples are positive.
  const double least = element == ElementType::kF64 ? std::numeric_limits<double>::min()
                                                    : std::numeric_limits<float>::min();
  result = Select(alpha >= 0, Maximum(result, least), kNan);
  cx.SetOutputs(node, ToOutputElement(cx, result));
}

void LowerRandomPermutation(LoweringContext& cx, const ir::Node& node) {
  const Dims dims = cx.output_dims();
  Value keys = Stream(cx, node).Bits(ElementType::kU64, dims);
  Value index = Iota(cx.builder(), {ElementType::kS64, dims}, 0);
  std::vector<Value> sorted =
      Sort({keys, index}, 0, /*stable=*/true, [](std::span<const Value> args) {
        return std::vector<Value>{Compare(args[0], args[1], Direction::kLt)};
      });
  cx.SetOutputs(node, ToOutputElement(cx, sorted[1]));
}

void LowerRandomMultinomial(LoweringContext& cx, const ir::Node& node) {
  const bool replacement = ir::AttributeReader(node.attributes()).Bool();
  Value weights = cx.Lowered(node.operands()[1]);
  const Dims out = cx.output_dims();
  const int64_t n = weights.dims().back(), k = out.back();
  const int64_t rows = weights.rank() == 2 ? weights.dim(0) : 1;
  const ElementType element =
      weights.element() == ElementType::kF64 ? ElementType::kF64 : ElementType::kF32;
  weights = Reshape(Convert(weights, element), {rows, n});
  if (replacement) {
    // The inverse of the distribution function: how many cumulated weights are not above u.
    Value cumulated = Scan(weights, 1, ReduceOp::kAdd);
    Value total = Slice(cumulated, {0, n - 1}, {rows, n});
    Value u = Multiply(Stream(cx, node).Uniform(element, {rows, k}),
                       BroadcastInDim(total, {rows, k}, {0, 1}));
    Value below = Compare(BroadcastInDim(cumulated, {rows, k, n}, {0, 2}),
                          BroadcastInDim(u, {rows, k, n}, {0, 1}), Direction::kLe);
    Value count = Reduce(Convert(below, ElementType::kS64), {2}, ReduceOp::kAdd);
    count = Minimum(count, FullLike(count, n - 1));
    cx.SetOutputs(node, Reshape(count, out));
    return;
  }
  // Without replacement: the k smallest of exponential variables divided by their weights
  // (Efraimidis and Spirakis 2006).
  Value u = Stream(cx, node).Uniform(element, {rows, n}, /*centered=*/true);
  Value keys = Divide(Negate(Log(u)), weights);
  Value index = Iota(cx.builder(), {ElementType::kS64, {rows, n}}, 1);
  std::vector<Value> sorted =
      Sort({keys, index}, 1, /*stable=*/true, [](std::span<const Value> args) {
        return std::vector<Value>{Compare(args[0], args[1], Direction::kLt)};
      });
  cx.SetOutputs(node, Reshape(Slice(sorted[1], {0, 0}, {rows, k}), out));
}

namespace {

// ---- Gradients of samples: of a gamma or beta variable by its parameter, at a constant value
// of the distribution function. PyTorch's approximations (Jankowiak and Obermeyer 2018; the
// tables are its Distributions.h), each good in a part of the plane.

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

/// By alpha, for x near 0: Taylor series.
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

/// By beta, for x near 0: Taylor series.
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

/// By alpha, for large alpha and beta: Rice's saddle point expansion.
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

/// By alpha: a rational correction to an analytic approximation.
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
