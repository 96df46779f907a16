// Random numbers, which programs make on the device from a seed that is a parameter.
#include <ATen/Dispatch_v2.h>
#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_standard_gamma.h>
#include <ATen/ops/ceil.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tan.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <bit>
#include <cmath>
#include <limits>

#include "XLANativeFunctions.h"
#include "XLAOps.h"
#include "aten/assign.h"
#include "aten/bridge.h"
#include "aten/generator.h"
#include "aten/index_check.h"
#include "aten/node_builder.h"

namespace torch_xla {
namespace {

using aten::GetImpl;
using aten::GetIrValue;
using aten::MakeTensor;
using Generator = std::optional<at::Generator>;

/// A random node with the sizes of `self`. Its operands are the seed and then `operands`.
ir::Value Random(const ir::OpSpec& op, const at::Tensor& self, const Generator& generator,
                 std::initializer_list<ir::Value> operands, at::ScalarType dtype) {
  ir::Node::Operands all{aten::DrawSeed(generator, GetImpl(self)->root()->device())};
  for (const ir::Value& operand : operands) all.push_back(operand);
  return tensor::MakeNode(&op, std::move(all), {}, ir::GetShape(dtype, self.sizes()));
}

ir::Value Number(double value) { return tensor::MakeScalar(value); }

/// The dtype in which to draw, before a conversion to the dtype of `self`.
at::ScalarType FloatOf(const at::Tensor& self) {
  return self.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor& FillWith(at::Tensor& self, const ir::Value& value) {
  GetImpl(self)->Write(tensor::Cast(value, self.scalar_type()));
  return self;
}

/// Draws numbers of FloatOf(self), from which a distribution is composed.
at::Tensor Drawn(const ir::OpSpec& op, const at::Tensor& self, const Generator& generator,
                 std::initializer_list<ir::Value> operands) {
  return MakeTensor(Random(op, self, generator, operands, FloatOf(self)),
                    GetImpl(self)->root()->device());
}

/// Fills `self` with the result of `draw`, which is not called if `self` is empty: most of the
/// CPU's kernels return in that case before they check the dtype.
template <typename Draw>
at::Tensor& FillUnlessEmpty(at::Tensor& self, Draw draw) {
  return self.numel() == 0 ? self : FillWith(self, draw());
}

/// Refuses other dtypes as the CPU's kernel of this name does.
void CheckImplemented(bool implemented, const at::Tensor& self, const char* kernel) {
  TORCH_CHECK_NOT_IMPLEMENTED(implemented, '"', kernel, "\" not implemented for '",
                              self.scalar_type(), "'");
}

void CheckFloating(const at::Tensor& self, const char* kernel) {
  CheckImplemented(self.is_floating_point(), self, kernel);
}

/// The largest finite number of a floating point dtype.
double LargestOf(at::ScalarType dtype) {
  return AT_DISPATCH_V2(
      dtype, "check_uniform_bounds",
      AT_WRAP([] { return static_cast<double>(std::numeric_limits<scalar_t>::max()); }),
      AT_EXPAND(AT_FLOATING_TYPES), AT_EXPAND(AT_FLOAT8_TYPES), at::kHalf, at::kBFloat16);
}

/// The least and the largest number of a floating point dtype in the open interval (0, 1).
std::pair<double, double> InsideOfOne(at::ScalarType dtype) {
  return AT_DISPATCH_V2(dtype, "_sample_dirichlet", AT_WRAP([] {
                          using Limits = std::numeric_limits<scalar_t>;
                          return std::pair(static_cast<double>(Limits::min()),
                                           1 - static_cast<double>(Limits::epsilon()) / 2);
                        }),
                        AT_EXPAND(AT_FLOATING_TYPES), at::kHalf, at::kBFloat16);
}

void CheckDeviation(const at::Tensor& std) {
  TORCH_CHECK(!std.is_complex(), "normal expects standard deviation to be non-complex");
  aten::CheckData("aten::normal", "normal expects all elements of std >= 0.0",
                  [&] { return std.ge(0).all(); });
}

void CheckProbability(const char* op, const at::Tensor& p) {
  aten::CheckData(op, "expected all p in [0, 1]",
                  [&] { return p.ge(0).logical_and(p.le(1)).all(); });
}

void CheckContinuous(const at::Tensor& self, const char* name) {
  TORCH_CHECK(self.is_floating_point(), name,
              " distribution is a continuous probability distribution. dtype must be a floating "
              "point but you specified ",
              self.scalar_type());
}

/// One past the largest integer up to which a dtype holds all of them.
int64_t IntegerLimit(at::ScalarType dtype) {
  if (dtype == at::kBool) return 2;
  if (c10::isIntegralType(dtype, /*includeBool=*/false)) {
    const auto digits = 8 * c10::elementSize(dtype) - (c10::isSignedType(dtype) ? 1 : 0);
    return digits < 63 ? int64_t{1} << digits : std::numeric_limits<int64_t>::max();
  }
  const int digits = dtype == at::kHalf       ? 11
                     : dtype == at::kBFloat16 ? 8
                     : dtype == at::kFloat    ? 24
                     : dtype == at::kDouble   ? 53
                                              : 0;
  return digits ? (int64_t{1} << digits) + 1 : std::numeric_limits<int64_t>::max();
}

/// Rounds `x` to an integer of so many binary digits: down, or up with `up`.
int64_t Rounded(int64_t x, int digits, bool up) {
  const uint64_t size = x < 0 ? -static_cast<uint64_t>(x) : static_cast<uint64_t>(x);
  const int rest = std::bit_width(size) - digits;
  if (rest <= 0) return x;
  const int64_t step = int64_t{1} << rest, below = x & -step;
  if (!up || below == x || below > std::numeric_limits<int64_t>::max() - step) return below;
  return below + step;
}

at::Tensor& RandomInteger(at::Tensor& self, int64_t from, int64_t to, const Generator& generator) {
  TORCH_CHECK(from < to, "random_ expects 'from' to be less than 'to', but got from=", from,
              " >= to=", to);
  TORCH_CHECK(!self.is_complex(),
              "check_random_bounds handles only integral, floating-point and boolean types");
  const at::ScalarType dtype = self.scalar_type();
  if (c10::isIntegralType(dtype, /*includeBool=*/true)) {
    const int64_t limit = IntegerLimit(dtype);
    const bool is_signed = dtype != at::kBool && c10::isSignedType(dtype);
    TORCH_CHECK(from >= (is_signed ? -limit : 0), "from is out of bounds for ", dtype);
    TORCH_CHECK(to - 1 < limit, "to - 1 is out of bounds for ", dtype);
  } else {
    const double most = LargestOf(dtype);
    TORCH_CHECK(static_cast<double>(from) >= -most, "from is out of bounds for ", dtype);
    TORCH_CHECK(static_cast<double>(to - 1) <= most, "to - 1 is out of bounds for ", dtype);
    // Rounding after the draw could reach the excluded end, or a number below the first.
    const int digits = std::bit_width(static_cast<uint64_t>(IntegerLimit(dtype) - 1)) - 1;
    from = Rounded(from, digits, /*up=*/true);
    to = std::max(from, Rounded(to - 1, digits, /*up=*/false)) + 1;
  }
  auto number = [](int64_t n) { return tensor::MakeScalar(n); };
  return FillWith(self,
                  Random(ir::ops::random, self, generator, {number(from), number(to)}, at::kLong));
}

at::Tensor Normal(const at::Tensor& like, const ir::Value& mean, const ir::Value& std,
                  at::IntArrayRef sizes, const Generator& generator) {
  if (c10::multiply_integers(sizes) == 0) return at::empty(sizes, like.options());
  CheckFloating(like, "normal_kernel_cpu");
  const int device = GetImpl(like)->root()->device();
  return MakeTensor(
      tensor::MakeNode(&ir::ops::normal, {aten::DrawSeed(generator, device), mean, std}, {},
                       ir::GetShape(like.scalar_type(), sizes)),
      device);
}

}  // namespace

at::Tensor& XLANativeFunctions::uniform_(at::Tensor& self, double from, double to,
                                         Generator generator) {
  TORCH_CHECK(from <= to, "uniform_ expects to return a [from, to) range, but found from=", from,
              " > to=", to);
  if (self.is_complex()) {
    at::view_as_real(self).uniform_(from, to, generator);
    return self;
  }
  CheckFloating(self, "check_uniform_bounds");
  const double most = LargestOf(self.scalar_type());
  TORCH_CHECK(-most <= from && to <= most && to - from <= most, "uniform_ from ", from, " to ", to,
              " is out of bounds for ", self.scalar_type());
  return FillWith(self, Random(ir::ops::uniform, self, generator, {Number(from), Number(to)},
                               self.scalar_type()));
}

at::Tensor& XLANativeFunctions::normal_(at::Tensor& self, double mean, double std,
                                        Generator generator) {
  TORCH_CHECK(std >= 0, "normal expects std >= 0.0, but found std ", std);
  if (self.is_complex()) {
    // The real part has half of the variance.
    at::view_as_real(self).normal_(0, std / std::sqrt(2.), generator);
    return self.add_(mean);
  }
  return FillUnlessEmpty(self, [&] {
    CheckFloating(self, "normal_kernel_cpu");
    return Random(ir::ops::normal, self, generator, {Number(mean), Number(std)}, FloatOf(self));
  });
}

at::Tensor XLANativeFunctions::normal_Tensor_float(const at::Tensor& mean, double std,
                                                   Generator generator) {
  TORCH_CHECK(std >= 0, "normal expects std >= 0.0, but found std ", std);
  if (mean.is_complex()) return at::zeros_like(mean).normal_(0, std, generator) + mean;
  return Normal(mean, GetIrValue(mean), Number(std), mean.sizes(), generator);
}

at::Tensor XLANativeFunctions::normal_float_Tensor(double mean, const at::Tensor& std,
                                                   Generator generator) {
  CheckDeviation(std);
  return Normal(std, Number(mean), GetIrValue(std), std.sizes(), generator);
}

at::Tensor XLANativeFunctions::normal_Tensor_Tensor(const at::Tensor& mean, const at::Tensor& std,
                                                    Generator generator) {
  CheckDeviation(std);
  if (mean.is_complex()) {
    const at::Tensor drawn = at::zeros(at::infer_size(mean.sizes(), std.sizes()), mean.options())
                                 .normal_(0, 1, generator);
    return drawn * std + mean;
  }
  return Normal(mean, GetIrValue(mean), GetIrValue(std), at::infer_size(mean.sizes(), std.sizes()),
                generator);
}

at::Tensor& XLANativeFunctions::exponential_(at::Tensor& self, double lambd, Generator generator) {
  TORCH_CHECK(lambd > 0, "exponential_ expects lambda > 0.0, but found lambda=", lambd);
  return FillUnlessEmpty(self, [&] {
    CheckContinuous(self, "Exponential");
    return Random(ir::ops::exponential, self, generator, {Number(lambd)}, FloatOf(self));
  });
}

at::Tensor& XLANativeFunctions::cauchy_(at::Tensor& self, double median, double sigma,
                                        Generator generator) {
  TORCH_CHECK(sigma > 0, "cauchy_ expects sigma > 0.0, but found sigma=", sigma);
  CheckContinuous(self, "Cauchy");
  const at::Tensor u = Drawn(ir::ops::uniform, self, generator, {Number(-0.5), Number(0.5)});
  return FillWith(self, GetIrValue(at::tan(u * M_PI) * sigma + median));
}

at::Tensor& XLANativeFunctions::geometric_(at::Tensor& self, double p, Generator generator) {
  TORCH_CHECK(0 < p && p < 1, "geometric_ expects p to be in (0, 1), but got p=", p);
  return FillUnlessEmpty(self, [&] {
    CheckImplemented(self.scalar_type() != at::kBool && !self.is_complex(), self, "geometric_cpu");
    // A geometric variable is an exponential variable that is rounded up.
    const at::Tensor x = Drawn(ir::ops::exponential, self, generator, {Number(-std::log1p(-p))});
    return GetIrValue(at::ceil(x));
  });
}

at::Tensor& XLANativeFunctions::log_normal_(at::Tensor& self, double mean, double std,
                                            Generator generator) {
  TORCH_CHECK(std > 0, "log_normal_ expects std > 0.0, but found std=", std);
  return FillUnlessEmpty(self, [&] {
    CheckFloating(self, "log_normal_cpu");
    const at::Tensor x = Drawn(ir::ops::normal, self, generator, {Number(mean), Number(std)});
    return GetIrValue(at::exp(x));
  });
}

at::Tensor XLANativeFunctions::poisson(const at::Tensor& self, Generator generator) {
  CheckFloating(self, "poisson_cpu");
  aten::CheckData("aten::poisson", "invalid Poisson rate, expected rate to be non-negative",
                  [&] { return self.ge(0).all(); });
  return MakeTensor(
      Random(ir::ops::poisson, self, generator, {GetIrValue(self)}, self.scalar_type()),
      GetImpl(self)->root()->device());
}

at::Tensor XLANativeFunctions::binomial(const at::Tensor& count, const at::Tensor& prob,
                                        Generator generator) {
  TORCH_CHECK_VALUE(
      count.is_floating_point(),
      "binomial only supports floating-point dtypes for count, got: ", count.scalar_type());
  TORCH_CHECK(count.scalar_type() == prob.scalar_type(), "Found dtype ", prob.scalar_type(),
              " but expected ", count.scalar_type());
  const int device = GetImpl(count)->root()->device();
  return MakeTensor(
      tensor::MakeNode(
          &ir::ops::binomial,
          {aten::DrawSeed(generator, device), GetIrValue(count), GetIrValue(prob)}, {},
          ir::GetShape(count.scalar_type(), at::infer_size(count.sizes(), prob.sizes()))),
      device);
}

at::Tensor XLANativeFunctions::_standard_gamma(const at::Tensor& self, Generator generator) {
  CheckFloating(self, "gamma_cpu");
  return MakeTensor(
      Random(ir::ops::_standard_gamma, self, generator, {GetIrValue(self)}, self.scalar_type()),
      GetImpl(self)->root()->device());
}

at::Tensor XLANativeFunctions::_sample_dirichlet(const at::Tensor& self, Generator generator) {
  CheckFloating(self, "dirichlet");
  // In double as in PyTorch, since all samples may be tiny if concentrations are small.
  const at::Tensor gamma = at::_standard_gamma(self.to(at::kDouble), std::move(generator));
  const auto [least, most] = InsideOfOne(self.scalar_type());
  return (gamma / gamma.sum(-1, /*keepdim=*/true)).clamp(least, most).to(self.scalar_type());
}

at::Tensor& XLANativeFunctions::random_(at::Tensor& self, Generator generator) {
  return RandomInteger(self, 0, IntegerLimit(self.scalar_type()), generator);
}

at::Tensor& XLANativeFunctions::random__to(at::Tensor& self, int64_t to, Generator generator) {
  return RandomInteger(self, 0, to, generator);
}

at::Tensor& XLANativeFunctions::random__from(at::Tensor& self, int64_t from,
                                             std::optional<int64_t> to, Generator generator) {
  return RandomInteger(self, from, to.value_or(IntegerLimit(self.scalar_type())), generator);
}

at::Tensor& XLANativeFunctions::bernoulli__float(at::Tensor& self, double p, Generator generator) {
  TORCH_CHECK(0 <= p && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
  return FillUnlessEmpty(self, [&] {
    CheckImplemented(!self.is_complex(), self, "bernoulli_scalar_cpu_");
    return Random(ir::ops::bernoulli, self, generator, {Number(p)}, self.scalar_type());
  });
}

at::Tensor& XLANativeFunctions::bernoulli__Tensor(at::Tensor& self, const at::Tensor& p,
                                                  Generator generator) {
  CheckProbability("aten::bernoulli_", p);
  const int device = GetImpl(self)->root()->device();
  return FillWith(
      self, Random(ir::ops::bernoulli, self, generator,
                   {aten::OperandValue(p, device, "aten::bernoulli_", "p")}, self.scalar_type()));
}

at::Tensor XLANativeFunctions::bernoulli(const at::Tensor& self, Generator generator) {
  if (self.numel() == 0) return at::empty_like(self);
  CheckFloating(self, "bernoulli_tensor_cpu_p_");
  CheckProbability("aten::bernoulli", self);
  return MakeTensor(
      Random(ir::ops::bernoulli, self, generator, {GetIrValue(self)}, self.scalar_type()),
      GetImpl(self)->root()->device());
}

at::Tensor& XLANativeFunctions::bernoulli_out(const at::Tensor& self, Generator generator,
                                              at::Tensor& out) {
  at::native::resize_output(out, self.sizes());
  return out.bernoulli_(self, std::move(generator));
}

at::Tensor XLANativeFunctions::bernoulli_p(const at::Tensor& self, double p, Generator generator) {
  TORCH_CHECK(0 <= p && p <= 1, "bernoulli expects p to be in [0, 1], but got p=", p);
  return MakeTensor(Random(ir::ops::bernoulli, self, generator, {Number(p)}, self.scalar_type()),
                    GetImpl(self)->root()->device());
}

at::Tensor& XLANativeFunctions::randperm_generator_out(int64_t n, Generator generator,
                                                       at::Tensor& out) {
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  const int device = GetImpl(out, "randperm")->root()->device();
  aten::AssignOut(out, tensor::MakeNode(&ir::ops::randperm, {aten::DrawSeed(generator, device)}, {},
                                        ir::GetShape(out.scalar_type(), {n})));
  return out;
}

at::Tensor XLANativeFunctions::multinomial(const at::Tensor& self, int64_t num_samples,
                                           bool replacement, Generator generator) {
  TORCH_CHECK(self.dim() == 1 || self.dim() == 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(self.is_floating_point(),
              "multinomial only supports floating-point dtypes for "
              "input, got: ",
              self.scalar_type());
  TORCH_CHECK(num_samples > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(self.size(-1) <= (1 << 24), "number of categories cannot exceed 2^24");
  TORCH_CHECK(replacement || num_samples <= self.size(-1),
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  aten::CheckData("aten::multinomial",
                  "probability tensor contains either `inf`, `nan` or element < 0",
                  [&] { return self.ge(0).logical_and(self.isfinite()).all(); });
  aten::CheckData("aten::multinomial",
                  "invalid multinomial distribution (sum of probabilities <= 0)",
                  [&] { return self.sum(-1).gt(0).all(); });
  const int device = GetImpl(self)->root()->device();
  tensor::Ints sizes(self.sizes().begin(), self.sizes().end());
  sizes.back() = num_samples;
  ir::Words words;
  ir::AttributeWriter(words).Int(replacement);
  return MakeTensor(
      tensor::MakeNode(&ir::ops::multinomial, {aten::DrawSeed(generator, device), GetIrValue(self)},
                       std::move(words), ir::GetShape(at::kLong, sizes)),
      device);
}

at::Tensor XLANativeFunctions::rrelu_with_noise(const at::Tensor& self, at::Tensor& noise,
                                                const at::Scalar& lower, const at::Scalar& upper,
                                                bool training, Generator generator) {
  if (!training) return at::leaky_relu(self, (lower.toDouble() + upper.toDouble()) / 2);
  const at::Tensor negative = self.le(0);
  noise.uniform_(lower.toDouble(), upper.toDouble(), std::move(generator));
  noise.copy_(at::where(negative, noise, 1));
  return at::where(negative, self.mul(noise), self);
}

at::Tensor& XLANativeFunctions::rrelu_with_noise_(at::Tensor& self, at::Tensor& noise,
                                                  const at::Scalar& lower, const at::Scalar& upper,
                                                  bool training, Generator generator) {
  return self.copy_(rrelu_with_noise(self, noise, lower, upper, training, std::move(generator)));
}

std::tuple<at::Tensor, at::Tensor> XLANativeFunctions::native_dropout(const at::Tensor& input,
                                                                      double p,
                                                                      std::optional<bool> train) {
  // As in PyTorch's CPU kernel, dropout is on by default.
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, at::kBool)};
  const at::Tensor mask = at::empty_like(input, at::kBool).bernoulli_(1 - p);
  return {input.mul(mask).mul_(p == 1 ? 0.0 : 1 / (1 - p)), mask};
}

}  // namespace torch_xla
