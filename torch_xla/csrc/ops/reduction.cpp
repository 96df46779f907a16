// Reductions and scans. Half types are accumulated in float and rounded once.
#include "ops/reduction.h"

#include <ATen/CompositeExplicitAutogradFunctions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "XLALowerings.h"
#include "XLANativeFunctions.h"
#include "XLAOps.h"
#include "aten/node_builder.h"
#include "cpu/calls.h"
#include "cpu/choices.h"
#include "lowering/elementwise.h"
#include "lowering/kernel_choice.h"
#include "lowering/library_call.h"
#include "lowering/patterns.h"
#include "runtime/platform.h"
#include "stablehlo/arithmetic.h"

namespace torch_xla::lowering {
namespace {

namespace choices = cpu::choices;

bool IsLast(const Dims& dims, int64_t rank) {
  return std::all_of(dims.begin(), dims.end(),
                     [&](int64_t dim) { return dim >= rank - std::ssize(dims); });
}

/// `large` and `is_long` are the least numbers of elements, in all and per result, for a call.
std::optional<Value> CallReduction(const LoweringContext& cx, std::string_view name, Value x,
                                   const Dims& dims, int64_t large, int64_t is_long,
                                   cpu::Reduction operation, double p = 0) {
  Dims kept;
  int64_t length = 1;
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (std::find(dims.begin(), dims.end(), i) == dims.end()) {
      kept.push_back(x.dim(i));
    } else {
      length *= x.dim(i);
    }
  }
  if (length <= 1 || x.type().num_elements() == 0) return std::nullopt;
  if (!ChoosesLibrary(
          cx, name,
          {IsLast(dims, x.rank()) ? "last" : "others", length >= is_long ? "long" : "short",
           x.type().num_elements() >= large ? "large" : "small"})) {
    return std::nullopt;
  }
  cpu::Words words = cpu::ToWords(cpu::ReductionCall{operation, p});
  words.insert(words.end(), dims.begin(), dims.end());
  const ElementType element =
      operation == cpu::Reduction::kSum ? ComputeType(x.element()) : x.element();
  return CallLibrary(cpu::kReductionTarget, {x}, {{element, kept}}, words)[0];
}

bool IsWide(Value x) {
  return x.element() == ElementType::kF32 || x.element() == ElementType::kF64;
}

/// The next functions return nothing if no call is made. The sum of bfloat16 is float.
std::optional<Value> CallSum(const LoweringContext& cx, Value x, const Dims& dims) {
  // XLA converts bfloat16 to float one element after the other.
  const bool is_half = x.element() == ElementType::kBF16 && IsLast(dims, x.rank());
  if (is_half)
    return CallReduction(cx, "sum", x, dims, choices::kLargeHalfSum, choices::kLongHalfSum,
                         cpu::Reduction::kSum);
  if (!IsWide(x)) return std::nullopt;
  return CallReduction(cx, "sum", x, dims, choices::kLargeSum, choices::kLongSum,
                       cpu::Reduction::kSum);
}

std::optional<Value> CallProduct(const LoweringContext& cx, Value x, const Dims& dims) {
  // ATen's kernel takes one dimension. Several dimensions at the end are dense, so they are one.
  if (!IsWide(x) || !IsLast(dims, x.rank())) return std::nullopt;
  return CallReduction(cx, "product", x, dims, choices::kLargeMultiplied, choices::kLongMultiplied,
                       cpu::Reduction::kProduct);
}

/// kMax or kMin, which are NaN if an element is NaN.
std::optional<Value> CallExtreme(const LoweringContext& cx, Value x, const Dims& dims,
                                 ReduceOp op) {
  if (!runtime::IsFloat(x.element())) return std::nullopt;
  return CallReduction(cx, "extreme", x, dims, choices::kLargeExtreme, choices::kLongExtreme,
                       op == ReduceOp::kMax ? cpu::Reduction::kMax : cpu::Reduction::kMin);
}

/// The norms of order `p`.
std::optional<Value> CallNorm(const LoweringContext& cx, Value x, const Dims& dims, double p) {
  if (!IsWide(x) || !(p > 0)) return std::nullopt;
  // XLA need not have the elements in memory to sum them.
  return CallReduction(cx, "norm", x, dims, choices::kLargeNorm, choices::kLongNorm,
                       cpu::Reduction::kNorm, p);
}

/// The sum over `dims` of the first operand of the node that is being lowered, in float if it is
/// bfloat16. Nothing if no call is made.
std::optional<Value> CallColumnSums(LoweringContext& cx, Value x, const Dims& dims) {
  const auto reduced = std::ssize(dims);
  const bool is_first =
      std::all_of(dims.begin(), dims.end(), [&](int64_t i) { return i < reduced; });
  if (!is_first || reduced == x.rank() || x.type().num_elements() == 0 ||
      (x.element() != ElementType::kF32 && x.element() != ElementType::kBF16) || !ReadsMemory(cx)) {
    return std::nullopt;
  }
  const Dims kept(x.dims().begin() + reduced, x.dims().end());
  const bool is_large = x.type().num_elements() >= choices::kLargeColumnSums;
  if (!ChoosesLibrary(cx, "column_sums", {is_large ? "large" : "small"})) return std::nullopt;
  return CallLibrary(cpu::kColumnSumsTarget, {x}, {{ElementType::kF32, kept}})[0];
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

stablehlo::Window PrefixWindow(Value x, int64_t dim) {
  stablehlo::Window window{.dimensions = Dims(x.rank(), 1),
                           .padding = stablehlo::Padding(x.rank(), {0, 0})};
  window.dimensions[dim] = x.dim(dim);
  window.padding[dim] = {x.dim(dim) - 1, 0};
  return window;
}

bool IsTrivialScan(Value x) { return x.rank() == 0 || x.type().num_elements() == 0; }

}  // namespace

std::optional<Value> CallDot(const LoweringContext& cx, Value x, Value y) {
  if (!IsWide(x) || x.element() != y.element()) return std::nullopt;
  const bool is_large = x.type().num_elements() >= choices::kLargeDot;
  if (!ChoosesLibrary(cx, "dot", {is_large ? "large" : "small"})) return std::nullopt;
  return CallLibrary(cpu::kDotTarget, {x, y}, {{x.element(), {}}})[0];
}

// A comparison with the extreme keeps both passes plain reductions, which fuse and vectorize,
// better still with 32 bits.
Value FirstIndex(Value x, Value extreme, const Dims& dims) {
  const int64_t size = dims.empty() ? 1 : x.dim(dims[0]);
  const stablehlo::Type indices{IndexElement(size), x.dims()};
  if (dims.empty()) return Constant(x.builder(), 0, indices);
  Value hit = Or(Equal(x, BroadcastTo(KeepDims(extreme, x.dims(), dims), x.dims())), IsNan(x));
  Value index = Select(hit, Iota(x.builder(), indices, dims[0]), size);
  return Reduce(index, dims, ReduceOp::kMin);
}

Value Sum(const LoweringContext& cx, Value x, const Dims& dims) {
  const std::optional<Value> called = CallSum(cx, x, dims);
  return called ? *called : Reduce(x, dims, ReduceOp::kAdd);
}

Value Extreme(const LoweringContext& cx, Value x, const Dims& dims, ReduceOp op) {
  if (const std::optional<Value> called = CallExtreme(cx, x, dims, op)) return *called;
  // XLA:CPU's library (YNNPACK), which takes arrays with more elements than this, drops NaN, as
  // what devices exchange does.
  constexpr int64_t kLeast = 1 << 14;
  const bool drops_nan = x.builder().partitions() > 1 ||
                         (runtime::IsHost(cx.platform()) && x.type().num_elements() >= kLeast);
  if (!runtime::IsFloat(x.element()) || !drops_nan || dims.empty()) return Reduce(x, dims, op);
  // The CPU cannot partition reductions that have a body of their own.
  Value extreme = Reduce(x, dims, op);
  Value is_nan = Reduce(IsNan(x), dims, ReduceOp::kOr);
  return NanWhere(is_nan, extreme);
}

Value Scan(Value x, int64_t dim, ReduceOp op) {
  return IsTrivialScan(x) ? x : ReduceWindow(x, PrefixWindow(x, dim), op);
}

namespace aten {
namespace {

using DimList = std::optional<c10::IntArrayRef>;

Dims Wrapped(DimList dims, Value x) { return ReductionDims(dims, x.rank()); }
Dims OneDim(int64_t dim, Value x) { return ReductionDims(c10::IntArrayRef(dim), x.rank()); }
Dims AllDims(Value x) { return ReductionDims(std::nullopt, x.rank()); }

/// How many elements go into one result.
int64_t Count(Value x, const Dims& dims) {
  int64_t count = 1;
  for (int64_t dim : dims) count *= x.dim(dim);
  return count;
}

/// x as output `i`: its element type, and dimensions of size 1 where keepdim has them.
Value Finish(LoweringContext& cx, Value x, size_t i = 0) {
  return Reshape(Convert(x, cx.output_element(i)), cx.output_dims(i));
}

/// x in the type that PyTorch accumulates output 0 in.
Value Accumulable(LoweringContext& cx, Value x) {
  return Convert(x, ComputeType(cx.output_element()));
}

/// Converts before it multiplies, since the argument `dtype` is the dtype of the product.
Value Product(LoweringContext& cx, Value x, const Dims& dims) {
  x = Accumulable(cx, x);
  const std::optional<Value> called = CallProduct(cx, x, dims);
  return Finish(cx, called ? *called : Reduce(x, dims, ReduceOp::kMul));
}

Value Logical(LoweringContext& cx, Value x, const Dims& dims, ReduceOp op) {
  return Finish(cx, Reduce(Convert(x, ElementType::kPred), dims, op));
}

/// The sum in the type in which it is accumulated.
Value Added(LoweringContext& cx, Value x, const Dims& dims) {
  if (ComputeType(cx.output_element()) == ElementType::kF32) {
    std::optional<Value> called = CallColumnSums(cx, x, dims);
    if (!called && x.element() == ElementType::kBF16) called = CallSum(cx, x, dims);
    if (called) return *called;
  }
  return Sum(cx, Accumulable(cx, x), dims);
}

Value Mean(LoweringContext& cx, Value x, const Dims& dims) {
  return Finish(cx, Added(cx, x, dims) / Count(x, dims));
}

struct Moments {
  Value mean, variance;
};

/// In two passes. The variance of complex numbers is real.
Moments MeanAndVariance(LoweringContext& cx, Value x, DimList dim,
                        std::optional<Value> correction) {
  const Dims dims = Wrapped(dim, x);
  const int64_t count = Count(x, dims);
  const ElementType real = ComputeType(cx.output_element());
  x = Convert(x, ComputeType(x.element()));
  Value mean = Reduce(x, dims, ReduceOp::kAdd) / count;
  Value centered = x - KeepDims(mean, x.dims(), dims);
  // The divisor is a double, since a float may not hold the count exactly.
  const ElementType f64 = cx.Physical(c10::ScalarType::Double);
  Value divisor =
      Scalar(x, count, f64) - (correction ? Convert(*correction, f64) : Scalar(x, 1, f64));
  // In PyTorch the variance of no numbers is NaN for any correction.
  divisor = count == 0 ? FullLike(divisor, std::numeric_limits<double>::quiet_NaN())
                       : Select(divisor > 0, divisor, 0);
  auto variance = [&](Value part) {
    return Reduce(part * part, dims, ReduceOp::kAdd) / Convert(divisor, real);
  };
  if (!runtime::IsComplex(x.element())) return {mean, variance(centered)};
  return {mean, variance(Real(centered)) + variance(Imag(centered))};
}

/// log(exp(a) + exp(b)) from the larger operand (by real part) and the difference.
Value LogAddExp(Value a, Value b) {
  const bool complex = runtime::IsComplex(a.element());
  Value first = complex ? Real(a) >= Real(b) : a >= b;
  first = Or(first, IsNan(a));
  Value larger = Select(first, a, b), smaller = Select(first, b, a);
  Value difference = Select(Equal(a, b), 0, smaller - larger);
  Value sum = larger + LogPlusOne(Exponential(difference));
  return Select(IsNegInf(complex ? Real(smaller) : smaller), larger, sum);
}

}  // namespace

// XLA:CPU computes each prefix of a window anew if the operation is not a sum. Operands that
// PyTorch's kernel does not take are left to StableHLO, which refuses them.
bool IsReal(Value x) { return !runtime::IsComplex(x.element()); }

bool IsInexact(Value x) { return runtime::IsFloat(x.element()) || runtime::IsComplex(x.element()); }

Value LogicalReduced(LoweringContext& cx, ReduceOp op, Value self) {
  return Logical(cx, self, AllDims(self), op);
}

Value LogicalReduced(LoweringContext& cx, ReduceOp op, Value self, int64_t dim, bool /*keepdim*/) {
  return Logical(cx, self, OneDim(dim, self), op);
}

/// Here () reduces no dimension; elsewhere it reduces all dimensions.
Value LogicalReduced(LoweringContext& cx, ReduceOp op, Value self, DimList dim, bool /*keepdim*/) {
  return Logical(cx, self, dim && dim->empty() ? Dims{} : Wrapped(dim, self), op);
}

/// PyTorch has no extremes of complex numbers, except of an empty tensor.
Value Extremes(LoweringContext& cx, ReduceOp op, Value self, c10::IntArrayRef dim,
               bool /*keepdim*/) {
  if (cx.output_type().num_elements() == 0) return Constant(cx.builder(), 0, cx.output_type());
  return Finish(cx, Extreme(cx, self, Wrapped(dim, self), op));
}

/// The extreme of all elements. Of PyTorch's kernels only Meta's accepts empty tensors.
Value ExtremeOfAll(LoweringContext& cx, ReduceOp op, Value self) {
  TORCH_CHECK(self.type().num_elements() > 0,
              "Expected reduction dim to be specified for "
              "input.numel() == 0. Specify the reduction dim with the 'dim' argument.");
  return Finish(cx, Extreme(cx, self, AllDims(self), op));
}

Value ArgExtreme(LoweringContext& cx, ReduceOp op, Value self, std::optional<int64_t> dim,
                 bool /*keepdim*/) {
  if (!dim) self = Reshape(self, {Count(self, AllDims(self))});
  const Dims dims = OneDim(dim.value_or(0), self);
  return Finish(cx, FirstIndex(self, Extreme(cx, self, dims, op), dims));
}

std::vector<Value> ExtremeWithIndex(LoweringContext& cx, ReduceOp op, Value self, int64_t dim,
                                    bool /*keepdim*/) {
  const Dims dims = OneDim(dim, self);
  TORCH_CHECK_INDEX(Count(self, dims) > 0, "Expected reduction dim ", dim,
                    " to have non-zero size.");
  Value extreme = Extreme(cx, self, dims, op);
  return {Finish(cx, extreme), Finish(cx, FirstIndex(self, extreme, dims), 1)};
}

Value Cumulated(LoweringContext& cx, ReduceOp op, Value self, int64_t dim,
                std::optional<c10::ScalarType> /*dtype*/) {
  return ToOutput(cx, Scan(Accumulable(cx, self), WrapDim(dim, self.rank()), op));
}

/// The last index of the extreme of each prefix. NaN is more extreme than every number.
std::vector<Value> CumulatedExtreme(LoweringContext& cx, ReduceOp op, Value self, int64_t dim) {
  dim = WrapDim(dim, self.rank());
  if (IsTrivialScan(self)) return {self, Constant(cx.builder(), 0, cx.output_type(1))};
  Value extreme = Scan(self, dim, op);
  Value place = Iota(cx.builder(), {IndexElement(self.dim(dim)), self.dims()}, dim);
  place = Select(Or(Equal(self, extreme), IsNan(self)), place, 0);
  return {extreme, Convert(Scan(place, dim, ReduceOp::kMax), cx.output_element(1))};
}

std::vector<Value> aminmax(LoweringContext& cx, Value self, std::optional<int64_t> dim,
                           bool /*keepdim*/) {
  const Dims dims = dim ? OneDim(*dim, self) : AllDims(self);
  return {Finish(cx, Extreme(cx, self, dims, ReduceOp::kMin)),
          Finish(cx, Extreme(cx, self, dims, ReduceOp::kMax), 1)};
}

Value linalg_vector_norm(LoweringContext& cx, Value self, const Number& ord, DimList dim,
                         bool /*keepdim*/, std::optional<c10::ScalarType> /*dtype*/) {
  const Dims dims = Wrapped(dim, self);
  ElementType element = ComputeType(cx.output_element());
  if (runtime::IsComplex(self.element())) {
    self =
        Abs(Convert(self, element == ElementType::kF64 ? ElementType::kC128 : ElementType::kC64));
  }
  Value x = Convert(self, element);
  auto sum = [&](Value terms) { return Reduce(terms, dims, ReduceOp::kAdd); };
  Value norm;
  // The norm of one number is its absolute value, and the norm of none is 0. The exponent does not
  // matter then, not even if it is NaN.
  const bool none = IsEmpty(self);
  if (none || self.type().num_elements() == cx.output_type().num_elements()) {
    const bool counts = ord.constant() && ord.constant()->toDouble() == 0;
    norm = sum(counts ? Convert(NotEqual(x, 0), element) : Abs(x));
    if (!none && !ord.constant()) {
      norm = Select(Equal(ord.Like(norm), 0), Convert(NotEqual(norm, 0), element), norm);
    }
    return Finish(cx, norm);
  }
  if (!ord.constant()) {
    Value size = Abs(x);
    norm = sum(Power(size, ord.Like(size)));
    Value p = ord.Like(norm);
    norm = Power(norm, 1 / p);
    norm = Select(Equal(p, 0), sum(Convert(NotEqual(x, 0), element)), norm);
    // Compare in double: an exponent that is infinite only in the type of the norm does not count.
    Value exact = ord.Like(Convert(norm, ElementType::kF64));
    norm = Select(Equal(exact, kInfinity), Extreme(cx, size, dims, ReduceOp::kMax), norm);
    norm = Select(Equal(exact, -kInfinity), Extreme(cx, size, dims, ReduceOp::kMin), norm);
    return Finish(cx, norm);
  }
  const double p = ord.constant()->toDouble();
  if (std::optional<Value> called = CallNorm(cx, x, dims, p)) return Finish(cx, *called);
  if (p == 0) {
    norm = sum(Convert(NotEqual(x, 0), element));
  } else if (p == 2) {
    norm = Sqrt(sum(x * x));
  } else if (p == 1) {
    norm = sum(Abs(x));
  } else if (std::isinf(p)) {
    norm = Extreme(cx, Abs(x), dims, p > 0 ? ReduceOp::kMax : ReduceOp::kMin);
  } else {
    norm = sum(Power(Abs(x), FullLike(x, p)));
    norm = Power(norm, 1 / FullLike(norm, p));
  }
  return Finish(cx, norm);
}

Value logcumsumexp(LoweringContext& cx, Value self, int64_t dim) {
  Value x = Accumulable(cx, self);
  if (IsTrivialScan(x)) return self;
  Value init = Scalar(x, -std::numeric_limits<double>::infinity(), x.element());
  auto body = [](std::span<const Value> v) -> std::vector<Value> {
    return {LogAddExp(v[0], v[1])};
  };
  const stablehlo::Window window = PrefixWindow(x, WrapDim(dim, x.rank()));
  return ToOutput(cx, ReduceWindow({x}, {init}, window, body)[0]);
}

Value logsumexp(LoweringContext& cx, Value self, c10::IntArrayRef dim, bool /*keepdim*/) {
  TORCH_CHECK(!dim.empty() || self.rank() == 0 || c10::multiply_integers(self.dims()) == 0,
              "logsumexp: expected at least one dimension to reduce, but got none");
  const Dims dims = Wrapped(dim, self);
  Value x = Accumulable(cx, self);
  Value real = runtime::IsComplex(x.element()) ? Real(x) : x;
  Value maximum = Reduce(real, dims, ReduceOp::kMax);
  // An infinite maximum minus itself is NaN, so subtract 0 instead.
  maximum = Convert(Select(IsInf(maximum), 0, maximum), x.element());
  Value terms = Exponential(x - KeepDims(maximum, x.dims(), dims));
  return Finish(cx, Log(Reduce(terms, dims, ReduceOp::kAdd)) + maximum);
}

Value mean(LoweringContext& cx, Value self, std::optional<c10::ScalarType> /*dtype*/) {
  return Mean(cx, self, AllDims(self));
}

Value mean_dim(LoweringContext& cx, Value self, DimList dim, bool /*keepdim*/,
               std::optional<c10::ScalarType> /*dtype*/) {
  return Mean(cx, self, Wrapped(dim, self));
}

Value prod(LoweringContext& cx, Value self, std::optional<c10::ScalarType> /*dtype*/) {
  return Product(cx, self, AllDims(self));
}

Value prod_dim_int(LoweringContext& cx, Value self, int64_t dim, bool /*keepdim*/,
                   std::optional<c10::ScalarType> /*dtype*/) {
  return Product(cx, self, OneDim(dim, self));
}

Value std_correction(LoweringContext& cx, Value self, DimList dim, std::optional<Value> correction,
                     bool /*keepdim*/) {
  return Finish(cx, Sqrt(MeanAndVariance(cx, self, dim, correction).variance));
}

std::vector<Value> std_mean_correction(LoweringContext& cx, Value self, DimList dim,
                                       std::optional<Value> correction, bool /*keepdim*/) {
  Moments moments = MeanAndVariance(cx, self, dim, correction);
  return {Finish(cx, Sqrt(moments.variance)), Finish(cx, moments.mean, 1)};
}

Value sum(LoweringContext& cx, Value self, std::optional<c10::ScalarType> /*dtype*/) {
  return Finish(cx, Added(cx, self, AllDims(self)));
}

Value sum_dim_IntList(LoweringContext& cx, Value self, DimList dim, bool /*keepdim*/,
                      std::optional<c10::ScalarType> /*dtype*/) {
  return Finish(cx, Added(cx, self, Wrapped(dim, self)));
}

Value var_correction(LoweringContext& cx, Value self, DimList dim, std::optional<Value> correction,
                     bool /*keepdim*/) {
  return Finish(cx, MeanAndVariance(cx, self, dim, correction).variance);
}

std::vector<Value> var_mean_correction(LoweringContext& cx, Value self, DimList dim,
                                       std::optional<Value> correction, bool /*keepdim*/) {
  Moments moments = MeanAndVariance(cx, self, dim, correction);
  return {Finish(cx, moments.variance), Finish(cx, moments.mean, 1)};
}

/// The norms of many arrays, such as all gradients of a model, as one node and on the CPU one call.
std::vector<Value> Norms(LoweringContext& cx, const std::vector<Value>& arrays) {
  const ElementType element = arrays[0].element();
  std::vector<Value> results;
  if ((element == ElementType::kF32 || element == ElementType::kBF16) &&
      ChoosesLibrary(cx, "norms")) {
    const std::vector<stablehlo::Type> types(arrays.size(), {ElementType::kF32, {}});
    results = CallLibrary(cpu::kNormsTarget, arrays, types);
  } else {
    for (Value x : arrays) {
      x = Convert(x, ComputeType(element));
      results.push_back(Sqrt(Reduce(x * x, AllDims(x), ReduceOp::kAdd)));
    }
  }
  return ToOutputElements(cx, results);
}

}  // namespace aten
}  // namespace torch_xla::lowering

namespace torch_xla {

std::vector<at::Tensor> XLANativeFunctions::_foreach_norm_Scalar(
    at::TensorList self, const at::Scalar& ord, std::optional<at::ScalarType> dtype) {
  auto is_like_first = [&](const at::Tensor& tensor) {
    return tensor.scalar_type() == self[0].scalar_type() && tensor.device() == self[0].device() &&
           tensor.numel() > 0;
  };
  const bool fits = !self.empty() && at::isFloatingType(self[0].scalar_type()) && !dtype &&
                    !ord.isComplex() && ord.toDouble() == 2 &&
                    std::all_of(self.begin(), self.end(), is_like_first);
  if (!fits) return at::compositeexplicitautograd::_foreach_norm(self, ord, dtype);
  ir::OutputShapes shapes;
  shapes.shapes.assign(self.size(), ir::GetShape(self[0].scalar_type(), {}));
  aten::NodeBuilder builder(ir::ops::norms);
  builder.TensorList(self);
  return builder.List(shapes);
}

}  // namespace torch_xla
