// Sorting, operations that are based on it, and searches in sorted arrays.
#include "ops/order.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "XLALowerings.h"
#include "lowering/cpu_kernel.h"
#include "lowering/elementwise.h"
#include "lowering/kernel_choice.h"
#include "lowering/result_type.h"
#include "ops/indexing.h"
#include "ops/reduction.h"
#include "stablehlo/arithmetic.h"

namespace torch_xla::lowering {
namespace {

using stablehlo::Type;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

bool IsFloat(Value x) { return runtime::IsFloat(x.element()); }

/// A float or an integer of up to 32 bits as a signed integer that sorts in PyTorch's order: -0
/// equals 0, and NaN is largest.
Value OrderKey(Value x) {
  if (!IsFloat(x)) return Convert(x, ElementType::kS64);
  Value bits = BitcastConvert(Convert(x, ElementType::kF32), ElementType::kS32);
  Value magnitude = And(bits, FullLike(bits, 0x7fffffff));
  Value key = Select(Compare(bits, ZerosLike(bits), Direction::kLt), Negate(magnitude), magnitude);
  Value nan = Compare(magnitude, FullLike(bits, 0x7f800000), Direction::kGt);
  return Convert(Select(nan, FullLike(bits, 0x7fffffff), key), ElementType::kS64);
}

/// Whether a comes before b in PyTorch's ascending order.
Value Less(Value a, Value b) {
  Value less = Compare(a, b, Direction::kLt);
  if (!IsFloat(a)) return less;
  return Or(less, And(IsNan(b), Not(IsNan(a))));
}

}  // namespace

// Whether an element and its index do not fit in one integer.
bool aten::SortsPairs(Value x) { return runtime::ByteWidth(x.element()) > 4; }

namespace {

/// The stable order of the elements along `dim` (kS64 indices). An element of up to 32 bits is
/// sorted as one integer with its index in the low half: XLA:CPU sorts integers much faster than
/// pairs, and GPUs sort them by radix.
Value SortOrder(Value x, int64_t dim, bool descending) {
  Type wide(ElementType::kS64, x.dims());
  if (aten::SortsPairs(x)) {
    Value position = Iota(x.builder(), wide, dim);
    auto before = [&](std::span<const Value> v) -> std::vector<Value> {
      return {descending ? Less(v[1], v[0]) : Less(v[0], v[1])};
    };
    return stablehlo::Sort({x, position}, dim, /*stable=*/true, before)[1];
  }
  Value key = OrderKey(x);
  if (descending) key = Not(key);
  Value packed = Or(ShiftLeft(key, FullLike(key, 32)), Iota(x.builder(), wide, dim));
  auto before = [](std::span<const Value> v) -> std::vector<Value> {
    return {Compare(v[0], v[1], Direction::kLt)};
  };
  packed = stablehlo::Sort({packed}, dim, /*stable=*/false, before)[0];
  return And(packed, FullLike(packed, 0xffffffff));
}

/// The first `count` along `dim` of (values, indices).
std::vector<Value> Ordered(LoweringContext& cx, Value x, int64_t dim, bool descending,
                           int64_t count) {
  Value order = SortOrder(x, dim, descending);
  Dims limits = order.dims();
  limits[dim] = count;
  order = Slice(order, Dims(limits.size(), 0), limits);
  return {Reshape(TakeAlong(x, dim, order), cx.output_dims()),
          Reshape(Convert(order, cx.output_element(1)), cx.output_dims(1))};
}

/// (x at `index`, index) as the node's outputs; one index per row along `dim`.
std::vector<Value> Picked(LoweringContext& cx, Value x, int64_t dim, Value index) {
  std::vector<Value> results{Reshape(TakeAlong(x, dim, index), cx.output_dims())};
  if (cx.node().num_outputs() > 1) {
    results.push_back(Reshape(Convert(index, cx.output_element(1)), cx.output_dims(1)));
  }
  return results;
}

/// Zeros for all results of an empty operand.
std::vector<Value> Zeros(LoweringContext& cx) {
  std::vector<Value> results;
  for (size_t i = 0; i < cx.node().num_outputs(); ++i) {
    results.push_back(Constant(cx.builder(), 0, cx.output_type(i)));
  }
  return results;
}

/// The lower median along `dim`. It is NaN if a NaN is there and NaNs are not ignored.
std::vector<Value> LowerMedian(LoweringContext& cx, bool ignore_nan, Value x, int64_t dim) {
  x = AtLeast1d(x);
  TORCH_CHECK_INDEX(cx.node().num_outputs() == 1 || x.dim(dim) > 0,
                    "median(): Expected reduction dim ", dim, " to have non-zero size.");
  if (IsEmpty(x)) {
    std::vector<Value> results = Zeros(cx);
    if (IsFloat(x)) results[0] = FullLike(results[0], kNan);
    return results;
  }
  const int64_t size = x.dim(dim);
  Value nans = Reduce(Convert(IsNan(x), ElementType::kS64), {dim}, ReduceOp::kAdd);
  nans = KeepDims(nans, x.dims(), {dim});
  Value numbers = size - nans;  // which sort before the NaNs
  Value place = ignore_nan ? Maximum((numbers - 1) / 2, 0)
                           : Select(nans > 0, numbers, FullLike(nans, (size - 1) / 2));
  return Picked(cx, x, dim, TakeAlong(SortOrder(x, dim, /*descending=*/false), dim, place));
}

}  // namespace

Value CountBefore(Value boundaries, Value values, bool right) {
  const int64_t size = boundaries.dim(-1), rank = values.rank();
  const bool shared = boundaries.rank() == 1;
  const ElementType element = IndexElement(size);
  const Type index{element, values.dims()};
  if (size == 0 || IsEmpty(values)) return Constant(values.builder(), 0, index);
  // As in PyTorch the comparison is negated, so that NaN comes after all boundaries.
  auto before = [&](Value boundary, Value value) {
    return Not(right ? boundary > value : boundary >= value);
  };
  auto count = [&]() -> std::vector<Value> {
    Dims dims = values.dims(), value_dims(rank), boundary_dims(boundaries.rank());
    dims.push_back(size);
    std::iota(value_dims.begin(), value_dims.end(), 0);
    std::iota(boundary_dims.begin(), boundary_dims.end(), 0);
    boundary_dims.back() = rank;
    Value hits = before(BroadcastInDim(boundaries, dims, boundary_dims),
                        BroadcastInDim(values, dims, value_dims));
    return {Reduce(Convert(hits, element), {rank}, ReduceOp::kAdd)};
  };
  Value zero = Constant(values.builder(), 0, index);
  Value steps = Scalar(values, 0, ElementType::kS32);
  const int rounds = std::bit_width(static_cast<uint64_t>(size));
  auto more = [&](std::span<const Value> v) -> std::vector<Value> { return {v[0] < rounds}; };
  auto halve = [&](std::span<const Value> v) -> std::vector<Value> {
    Value low = v[1], high = v[2], middle = low + (high - low) / 2;
    Value boundary = shared ? Take(boundaries, 0, middle) : TakeAlong(boundaries, rank - 1, middle);
    Value up = And(low < high, before(boundary, values));
    return {v[0] + 1, Select(up, middle + 1, low), Select(up, high, middle)};
  };
  auto search = [&] { return stablehlo::While({steps, zero, zero + size}, more, halve)[1]; };
  if (size > 64) return search();
  if (!IsFloat(boundaries)) return count()[0];
  // Counting takes one pass. If boundaries are NaN, the result depends on the binary search.
  Dims all(boundaries.rank());
  std::iota(all.begin(), all.end(), 0);
  return stablehlo::If(
      Reduce(IsNan(boundaries), all, ReduceOp::kOr),
      [&](std::span<const Value>) -> std::vector<Value> { return {search()}; },
      [&](std::span<const Value>) { return count(); })[0];
}

namespace {

Value LowerSearch(LoweringContext& cx, Value boundaries, size_t boundaries_operand, Value values,
                  size_t values_operand, bool right, std::optional<Value> sorter = {}) {
  const ir::Value operands[] = {cx.node().operands()[boundaries_operand],
                                cx.node().operands()[values_operand]};
  const ElementType common =
      ComputeType(cx.Physical(ResultType(operands, DefaultDtype(cx.node()))));
  if (sorter && !IsEmpty(boundaries)) {
    boundaries = TakeAlong(boundaries, boundaries.rank() - 1, *sorter);
  }
  boundaries = Convert(boundaries, common);
  values = AtLeast1d(Convert(values, common));
  return Reshape(Convert(CountBefore(boundaries, values, right), cx.output_element()),
                 cx.output_dims());
}

}  // namespace

namespace aten {

std::vector<Value> sort_stable(LoweringContext& cx, Value self, std::optional<bool>, int64_t dim,
                               bool descending) {
  Value x = AtLeast1d(self);
  if (IsEmpty(x)) return {x, Constant(cx.builder(), 0, cx.output_type(1))};
  dim = WrapDim(dim, self.rank());
  return Ordered(cx, x, dim, descending, x.dims()[dim]);
}

std::vector<Value> topk(LoweringContext& cx, Value self, int64_t k, int64_t dim, bool largest,
                        bool) {
  Value x = AtLeast1d(self);
  dim = WrapDim(dim, self.rank());
  if (cx.output_type().num_elements() == 0) return Zeros(cx);
  // XLA's own top-k is fast for f32 only.
  if (!IsFloat(x) || x.element() == ElementType::kF64) return Ordered(cx, x, dim, largest, k);
  Value y = Convert(x, ElementType::kF32);
  if (!largest) y = Negate(y);
  // XLA compares in total order, in which the sign of a NaN decides its place.
  double nan = std::copysign(std::numeric_limits<double>::quiet_NaN(), largest ? 1.0 : -1.0);
  y = Select(IsNan(y), FullLike(y, nan), y);
  Dims to_last(x.rank());
  std::iota(to_last.begin(), to_last.end(), 0);
  std::swap(to_last[dim], to_last.back());
  auto [values, indices] = stablehlo::TopK(Transpose(y, to_last), k);
  if (!largest) values = Negate(values);
  auto finish = [&](Value v, size_t output) {
    return Reshape(Convert(Transpose(v, to_last), cx.output_element(output)),
                   cx.output_dims(output));
  };
  return {finish(values, 0), finish(indices, 1)};
}

std::vector<Value> kthvalue(LoweringContext& cx, Value self, const Number& k, int64_t dim, bool) {
  // The CPU's kernel selects without sorting, but its k is part of the program.
  if (k.constant() && MayCallLibraries(cx.platform())) return CpuKernel(cx);
  Value x = AtLeast1d(self);
  if (IsEmpty(x)) return Zeros(cx);
  dim = WrapDim(dim, self.rank());
  Value order = SortOrder(x, dim, /*descending=*/false);
  const Value zero = Scalar(x, 0, ElementType::kS64);
  std::vector<Value> starts(x.rank(), zero);
  starts[dim] = k.Like(zero) - 1;
  Dims one = x.dims();
  one[dim] = 1;
  return Picked(cx, x, dim, stablehlo::DynamicSlice(order, starts, one));
}

Value MedianOfAll(LoweringContext& cx, bool ignore_nan, Value self) {
  return LowerMedian(cx, ignore_nan, Reshape(self, {self.type().num_elements()}), 0)[0];
}

std::vector<Value> Median(LoweringContext& cx, bool ignore_nan, Value self, int64_t dim, bool) {
  return LowerMedian(cx, ignore_nan, self, WrapDim(dim, self.rank()));
}

// The longest run of equal elements in sorted order (the first run of that length), and the
// original index of the run's last element: PyTorch's choices.
std::vector<Value> mode(LoweringContext& cx, Value self, int64_t dim, bool) {
  Value x = AtLeast1d(self);
  if (IsEmpty(x)) return Zeros(cx);
  dim = WrapDim(dim, self.rank());
  Value order = SortOrder(x, dim, /*descending=*/false);
  Value sorted = TakeAlong(x, dim, order);
  Value place = Iota(cx.builder(), {ElementType::kS64, x.dims()}, dim);
  Dims starts(x.rank(), 0), limits = x.dims(), one_less(x.rank(), 0), none(x.rank(), 0);
  starts[dim] = 1;
  limits[dim] -= 1;
  Value differs = NotEqual(Slice(sorted, starts, x.dims()), Slice(sorted, none, limits));
  one_less[dim] = 1;
  differs = Pad(differs, Scalar(x, true, ElementType::kPred), one_less, none);
  Value run_start = Scan(Select(differs, place, 0), dim, ReduceOp::kMax);
  Value length = place - run_start;
  Value longest = FirstIndex(length, Reduce(length, {dim}, ReduceOp::kMax), {dim});
  return Picked(cx, x, dim, TakeAlong(order, dim, KeepDims(longest, x.dims(), {dim})));
}

Value SearchSorted(LoweringContext& cx, Value sorted_sequence, Value self, bool, bool right,
                   std::optional<std::string_view> side, std::optional<Value> sorter) {
  return LowerSearch(cx, sorted_sequence, 0, self, 1, right || side == "right", sorter);
}

Value Bucketize(LoweringContext& cx, Value self, Value boundaries, bool, bool right) {
  TORCH_CHECK(boundaries.rank() == 1, "boundaries tensor must be 1 dimension, but got dim(",
              boundaries.rank(), ")");
  return LowerSearch(cx, boundaries, 1, self, 0, right);
}

Value histc(LoweringContext& cx, Value self, int64_t bins, const Number& min, const Number& max) {
  const ElementType element = ComputeType(cx.output_element());
  Value x = Convert(Reshape(self, {self.type().num_elements()}), element);
  const Value zero = Scalar(x, 0, element);
  for (const Number* bound : {&min, &max}) {
    TORCH_CHECK(!bound->constant() || std::isfinite(bound->constant()->toDouble()),
                "torch.histc: the range's bound ", bound->constant()->toDouble(), " is not finite");
  }
  Value low = min.Like(zero), high = max.Like(zero);
  if (!IsEmpty(x)) {
    Value from_data = Equal(low, high);
    low = Select(from_data, Reduce(x, {0}, ReduceOp::kMin), low);
    high = Select(from_data, Reduce(x, {0}, ReduceOp::kMax), high);
  }
  Value point = Equal(low, high);
  low = Select(point, low - 1, low);
  high = Select(point, high + 1, high);
  Value bin = Convert((x - low) * bins / (high - low), ElementType::kS64);
  Value inside = And(x >= low, x <= high);
  bin = Select(inside, Minimum(bin, bins - 1), bins);  // Put skips indices out of range
  Value counts = Constant(cx.builder(), 0, {ElementType::kS64, {bins}});
  return ToOutputElement(cx, Put(counts, 0, bin, OnesLike(bin), ReduceOp::kAdd));
}

/// Non-maximum suppression: which candidates stay, if each candidate that stays removes the later
/// candidates that it overlaps. Round k settles the first k candidates, so the fixed point is the
/// greedy result. It is reached after as many rounds as the longest chain of removals.
Value nms(LoweringContext& cx, Value overlaps, Value valid) {
  const Dims dims = overlaps.dims();
  const stablehlo::Type index{ElementType::kS64, dims};
  Value above = stablehlo::Compare(stablehlo::Iota(cx.builder(), index, 0),
                                   stablehlo::Iota(cx.builder(), index, 1), Direction::kLt);
  Value removes = stablehlo::And(overlaps, above);  // [i, j]: i removes j
  auto next = [&](std::span<const Value> state) -> std::vector<Value> {
    Value active = stablehlo::And(removes, stablehlo::BroadcastInDim(state[0], dims, {0}));
    Value removed = stablehlo::Reduce(active, {0}, ReduceOp::kOr);
    return {stablehlo::And(valid, stablehlo::Not(removed)), state[0]};
  };
  auto changed = [](std::span<const Value> state) -> std::vector<Value> {
    Value differs = stablehlo::Compare(state[0], state[1], Direction::kNe);
    return {stablehlo::Reduce(differs, {0}, ReduceOp::kOr)};
  };
  return stablehlo::While({valid, stablehlo::Not(valid)}, changed, next)[0];
}

}  // namespace aten
}  // namespace torch_xla::lowering
