// Distances between the rows of matrices by any p-norm, and their gradients.
#include <cmath>
#include <limits>

#include "XLALowerings.h"
#include "lowering/elementwise.h"
#include "ops/indexing.h"
#include "ops/reduction.h"
#include "stablehlo/arithmetic.h"

namespace torch_xla::lowering::aten {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The p-norm over the last dimension.
Value Norm(const LoweringContext& cx, Value x, const Number& number) {
  const Dims last = {x.rank() - 1};
  Value size = Abs(x);
  if (!number.constant()) {
    Value terms = Reduce(Power(size, number.Like(size)), last, ReduceOp::kAdd);
    Value p = number.Like(terms), norm = Power(terms, 1 / p);
    Value different = Reduce(Sign(size), last, ReduceOp::kAdd);  // NaN stays NaN
    norm = Select(Equal(p, 0), different, norm);
    return Select(Equal(p, kInfinity), Extreme(cx, size, last, ReduceOp::kMax), norm);
  }
  const double p = number.constant()->toDouble();
  if (std::isinf(p)) return Extreme(cx, size, last, ReduceOp::kMax);
  auto sum = [&](Value terms) { return Reduce(terms, last, ReduceOp::kAdd); };
  if (p == 0) return sum(Sign(size));  // NaN stays NaN
  if (p == 1) return sum(size);
  if (p == 2) return Sqrt(sum(x * x));
  return Power(sum(Power(size, FullLike(size, p))), FullLike(sum(size), 1 / p));
}

/// grad * (the derivative of norm = Norm(x, p) by x), or 0 where the norm is 0. `grad` and `norm`
/// lack the last dimension.
Value NormBackward(Value grad, Value x, Value norm, const Number& number) {
  const Dims axes = DimsBetween(0, x.rank() - 1);
  grad = BroadcastInDim(grad, x.dims(), axes);
  norm = BroadcastInDim(norm, x.dims(), axes);
  if (!number.constant()) {
    Value p = number.Like(x), size = Abs(x);
    Value slope = Sign(x) * Power(size, p - 1) / Power(norm, p - 1);
    Value flat = Or(Equal(norm, 0), And(p < 1, Equal(x, 0)));
    Value general = Select(flat, 0, grad * slope);
    general = Select(Equal(p, kInfinity), Select(Equal(size, norm), grad * Sign(x), 0), general);
    general = Select(Equal(p, 1), grad * Sign(x), general);
    return Select(Equal(p, 0), 0, general);
  }
  const double p = number.constant()->toDouble();
  if (p == 0) return ZerosLike(x);
  if (p == 1) return grad * Sign(x);
  if (std::isinf(p)) return Select(Equal(Abs(x), norm), grad * Sign(x), 0);
  auto power = [](Value base, double exponent) { return Power(base, FullLike(base, exponent)); };
  Value slope = p == 2 ? x / norm : Sign(x) * power(Abs(x), p - 1) / power(norm, p - 1);
  Value flat = Equal(norm, 0);
  // |x|^(p - 1) has a pole at 0 for p < 1.
  if (p < 1) flat = Or(flat, Equal(x, 0));
  return Select(flat, 0, grad * slope);
}

/// The pairs i < j of n rows, in order.
struct Pairs {
  Value i, j;
};

Pairs AllPairs(stablehlo::Builder& builder, int64_t n) {
  Value k = Iota(builder, {ElementType::kS64, {n * (n - 1) / 2}}, 0);
  // Row i begins at pair i * (2n - i - 1) / 2. The rounded root is off by at most 1.
  auto begin = [n](Value i) { return i * ((2 * n - 1) - i) / 2; };
  const int64_t b = 2 * n - 1;
  Value root = Sqrt(Convert(FullLike(k, b * b) - k * 8, ElementType::kF32));
  Value i = Convert((static_cast<double>(b) - root) / 2, ElementType::kS64);
  i = Select(begin(i) > k, i - 1, i);
  i = Select(begin(i + 1) <= k, i + 1, i);
  return {i, k - begin(i) + i + 1};
}

Value Difference(Value x, const Pairs& pairs) { return Take(x, 0, pairs.i) - Take(x, 0, pairs.j); }

/// [..., P, R, M]: each row of x1 minus each row of x2.
Value RowDifferences(Value x1, Value x2) {
  auto unsqueeze = [](Value x, int64_t from_end) {
    Dims dims = x.dims();
    dims.insert(dims.end() - from_end, 1);
    return Reshape(x, dims);
  };
  return unsqueeze(x1, 1) - unsqueeze(x2, 2);
}

}  // namespace

Value _pdist_forward(LoweringContext& cx, Value self, const Number& p) {
  if (cx.output_type().num_elements() == 0) return Constant(cx.builder(), 0, cx.output_type());
  Value x = Convert(self, ComputeType(self.element()));
  return ToOutput(cx, Norm(cx, Difference(x, AllPairs(cx.builder(), x.dim(0))), p));
}

Value _pdist_backward(LoweringContext& cx, Value grad, Value self, const Number& p, Value pdist) {
  Value x = Convert(self, ComputeType(self.element()));
  if (pdist.type().num_elements() == 0 || x.type().num_elements() == 0) {
    return Constant(cx.builder(), 0, cx.output_type());
  }
  const Pairs pairs = AllPairs(cx.builder(), x.dim(0));
  Value slope = NormBackward(Convert(grad, x.element()), Difference(x, pairs),
                             Convert(pdist, x.element()), p);
  Value sum = Put(ZerosLike(x), 0, pairs.i, slope, ReduceOp::kAdd);
  return ToOutput(cx, Put(sum, 0, pairs.j, -slope, ReduceOp::kAdd));
}

Value _cdist_forward(LoweringContext& cx, Value x1, Value x2, const Number& p,
                     std::optional<int64_t>) {
  if (x1.type().num_elements() == 0 || x2.type().num_elements() == 0) {
    return Constant(cx.builder(), 0, cx.output_type());
  }
  return ToOutput(cx, Norm(cx, RowDifferences(x1, x2), p));
}

Value _cdist_backward(LoweringContext& cx, Value grad, Value x1, Value x2, const Number& p,
                      Value cdist) {
  if (x1.type().num_elements() == 0 || x2.type().num_elements() == 0) {
    return Constant(cx.builder(), 0, cx.output_type());
  }
  Value slope = NormBackward(grad, RowDifferences(x1, x2), cdist, p);
  return ToOutput(cx, Reduce(slope, {slope.rank() - 2}, ReduceOp::kAdd));
}

}  // namespace torch_xla::lowering::aten
