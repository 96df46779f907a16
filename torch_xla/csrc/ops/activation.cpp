// Activation functions and their gradients. They follow PyTorch's formulas branch by branch, so
// that NaN and boundaries give the same results.
#include <limits>
#include <numbers>

#include "XLALowerings.h"
#include "lowering/elementwise.h"
#include "stablehlo/arithmetic.h"

namespace torch_xla::lowering::aten {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

constexpr double kSqrt1_2 = std::numbers::sqrt2 / 2;
// sqrt(2 / pi) and the cubic term of gelu's tanh form.
constexpr double kGeluBeta = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
constexpr double kGeluKappa = 0.044715;

/// exp(-|x|), from which log-sigmoid and its gradient are made without overflow.
Value ExpMinusAbs(Value x) { return Exponential(-Abs(x)); }

/// The halves of x along a dimension.
std::array<Value, 2> Halves(Value x, int64_t dim) {
  dim = WrapDim(dim, x.rank());
  Dims starts(x.rank(), 0), middle = x.dims();
  middle[dim] /= 2;
  Value first = Slice(x, starts, middle);
  starts[dim] = middle[dim];
  return {first, Slice(x, starts, x.dims())};
}

}  // namespace

Value elu_backward(LoweringContext& cx, Value grad_output, Value alpha, Value scale,
                   Value input_scale, bool is_result, Value self_or_result) {
  auto [grad, a, s, i, x] = ToCompute(cx, grad_output, alpha, scale, input_scale, self_or_result);
  Value slope = is_result ? x + a * s : a * s * Exponential(x * i);
  return ToOutput(cx, Select(x <= 0, grad * i * slope, grad * s));
}

Value gelu(LoweringContext& cx, Value self, std::string_view approximate) {
  auto [x] = ToCompute(cx, self);
  Value twice_cdf = approximate == "tanh" ? 1 + Tanh(kGeluBeta * (x + kGeluKappa * (x * x * x)))
                                          : 1 + Erf(x * kSqrt1_2);
  return ToOutput(cx, 0.5 * x * twice_cdf);
}

Value gelu_backward(LoweringContext& cx, Value grad_output, Value self,
                    std::string_view approximate) {
  auto [grad, x] = ToCompute(cx, grad_output, self);
  if (approximate == "tanh") {
    Value t = Tanh(kGeluBeta * (x + kGeluKappa * (x * x * x)));
    Value inner_slope = kGeluBeta * (1 + 3 * kGeluKappa * (x * x));
    return ToOutput(cx, grad * (0.5 * (1 + t) + 0.5 * x * ((1 - t * t) * inner_slope)));
  }
  Value cdf = 0.5 * (1 + Erf(x * kSqrt1_2));
  Value pdf = Exponential(x * x * -0.5) * (kGeluBeta / 2);
  return ToOutput(cx, grad * (cdf + x * pdf));
}

Value glu(LoweringContext& cx, Value self, int64_t dim) {
  auto [a, b] = Halves(self, dim);
  auto [x, gate] = ToCompute(cx, a, b);
  return ToOutput(cx, x * Logistic(gate));
}

Value glu_backward(LoweringContext& cx, Value grad_output, Value self, int64_t dim) {
  const ElementType element = ComputeType(cx.output_element());
  auto [x, b] = Halves(Convert(self, element), dim);
  Value gate = Logistic(b), grad = Convert(grad_output, element);
  Value grad_b = (1 - gate) * gate * grad * x;
  return ToOutput(cx, stablehlo::Concatenate({gate * grad, grad_b}, WrapDim(dim, x.rank())));
}

Value glu_backward_jvp(LoweringContext& cx, Value grad_x, Value /*grad_glu*/, Value x,
                       Value dgrad_glu, Value dx, int64_t dim) {
  const ElementType element = ComputeType(cx.output_element());
  auto [a, b] = Halves(Convert(x, element), dim);
  auto [da, db] = Halves(Convert(dx, element), dim);
  Value gate = Logistic(b), dgrad = Convert(dgrad_glu, element);
  Value slope =
      Convert(Halves(grad_x, dim)[0], element) * (1 - gate);  // the slope of grad_x.a by b
  Value dgrad_a = dgrad * gate + slope * db;
  Value dgrad_b = dgrad * gate * (1 - gate) * a + slope * (da + (1 - 2 * gate) * a * db);
  return ToOutput(cx, stablehlo::Concatenate({dgrad_a, dgrad_b}, WrapDim(dim, a.rank())));
}

Value glu_jvp(LoweringContext& cx, Value glu, Value x, Value dx, int64_t dim) {
  auto [da, db] = Halves(dx, dim);
  auto [y, b, dy, slope] = ToCompute(cx, glu, Halves(x, dim)[1], da, db);
  return ToOutput(cx, Logistic(b) * dy + y * (1 - Logistic(b)) * slope);
}

Value log_sigmoid_backward(LoweringContext& cx, Value grad_output, Value self,
                           Value /*buffer: cheaper made again than read*/) {
  auto [grad, x] = ToCompute(cx, grad_output, self);
  Value z = ExpMinusAbs(x), ratio = z / (1 + z);
  return ToOutput(cx, grad * Select(x < 0, 1 - ratio, ratio));
}

std::vector<Value> log_sigmoid_forward(LoweringContext& cx, Value self) {
  auto [x] = ToCompute(cx, self);
  Value z = ExpMinusAbs(x);
  return {ToOutput(cx, Minimum(x, 0) - LogPlusOne(z)), ToOutput(cx, z)};
}

Value logit(LoweringContext& cx, Value self, const std::optional<Number>& eps) {
  auto [x] = ToCompute(cx, self);
  if (eps) {
    Value low = eps->Like(x), high = 1 - low;
    x = Select(x < low, low, Select(x > high, high, x));
  }
  return ToOutput(cx, Select(Equal(x, 1), kInfinity, Log(x / (1 - x))));
}

Value logit_backward(LoweringContext& cx, Value grad_output, Value self,
                     const std::optional<Number>& eps) {
  auto [grad, x] = ToCompute(cx, grad_output, self);
  Value low = eps.value_or(Number(0)).Like(x), high = 1 - low;
  Value slope = Select(Or(Equal(x, 0), Equal(x, 1)), kInfinity, 1 / (x * (1 - x)));
  return ToOutput(cx, Select(Or(x<low, x> high), eps ? 0 : kNan, grad * slope));
}

Value mish_backward(LoweringContext& cx, Value grad_output, Value self) {
  auto [grad, x] = ToCompute(cx, grad_output, self);
  Value t = Tanh(LogPlusOne(Exponential(x)));
  return ToOutput(cx, grad * (t + x * Logistic(x) * (1 - t * t)));
}

Value nan_to_num(LoweringContext& cx, Value self, const std::optional<Number>& nan,
                 const std::optional<Number>& posinf, const std::optional<Number>& neginf) {
  if (runtime::IsComplex(self.element())) {
    return Complex(nan_to_num(cx, Real(self), nan, posinf, neginf),
                   nan_to_num(cx, Imag(self), nan, posinf, neginf));
  }
  if (!runtime::IsFloat(self.element())) return self;
  auto number = [&](const std::optional<Number>& value,
                    Value (*otherwise)(stablehlo::Builder&, ElementType)) {
    return value ? value->Like(self)
                 : BroadcastTo(otherwise(cx.builder(), self.element()), self.dims());
  };
  Value x = Select(IsNan(self), nan.value_or(Number(0)).Like(self), self);
  x = Select(Equal(self, kInfinity), number(posinf, stablehlo::MaxFinite), x);
  return Select(Equal(self, -kInfinity), number(neginf, stablehlo::MinFinite), x);
}

std::vector<Value> _prelu_kernel_backward(LoweringContext& cx, Value grad_output, Value self,
                                          Value weight) {
  auto [grad, x, w] = ToCompute(cx, grad_output, self, weight);
  Value positive = x > 0;
  return {ToOutput(cx, Select(positive, grad, w * grad)),
          ToOutput(cx, Select(positive, 0, x * grad))};
}

Value relu(LoweringContext&, Value self) { return Maximum(self, 0); }

Value sigmoid_backward(LoweringContext& cx, Value grad_output, Value output) {
  auto [grad, y] = ToCompute(cx, grad_output, output);
  Value slope = (1 - y) * y;
  return ToOutput(cx, grad * (runtime::IsComplex(y.element()) ? Conj(slope) : slope));
}

Value silu_backward(LoweringContext& cx, Value grad_output, Value self) {
  auto [grad, x] = ToCompute(cx, grad_output, self);
  Value sigmoid = Logistic(x);
  return ToOutput(cx, grad * sigmoid * (1 + x * (1 - sigmoid)));
}

Value softplus_backward(LoweringContext& cx, Value grad_output, Value self, Value beta,
                        Value threshold) {
  auto [grad, x, b, limit] = ToCompute(cx, grad_output, self, beta, threshold);
  Value z = Exponential(x * b);
  return ToOutput(cx, Select(x * b > limit, grad, grad * z / (z + 1)));
}

Value tanh_backward(LoweringContext& cx, Value grad_output, Value output) {
  auto [grad, y] = ToCompute(cx, grad_output, output);
  Value slope = 1 - y * y;
  return ToOutput(cx, grad * (runtime::IsComplex(y.element()) ? Conj(slope) : slope));
}

}  // namespace torch_xla::lowering::aten
