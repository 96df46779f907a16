#include "lowering/elementwise.h"

#include <c10/core/WrapDimMinimal.h>
#include <c10/util/Float8_e4m3fn.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "stablehlo/arithmetic.h"

namespace torch_xla::lowering {
namespace {

/// A value too large for a float type without infinities becomes the largest value if PyTorch
/// saturates (newer versions do).
Value ToE4M3(Value x) {
  static const bool saturates = !std::isnan(static_cast<float>(c10::Float8_e4m3fn(1e6F)));
  constexpr double kLargest = 448;
  if (saturates) {
    x = Select(x > kLargest, kLargest, Select(x < -kLargest, -kLargest, x));
  }
  return stablehlo::Convert(x, ElementType::kF8E4M3FN);
}

/// A type with an exponent only: signs are lost, and zero becomes the smallest power of two.
Value ToE8M0(Value x) {
  Value power = stablehlo::Convert(stablehlo::Abs(x), ElementType::kF8E8M0FNU);
  Value bits = stablehlo::BitcastConvert(power, ElementType::kU8);
  return stablehlo::BitcastConvert(Select(stablehlo::Equal(x, 0), 0, bits),
                                   ElementType::kF8E8M0FNU);
}

/// Converts values as PyTorch casts.
Value Cast(Value x, ElementType element) {
  const bool narrow = element == ElementType::kF8E4M3FN || element == ElementType::kF8E8M0FNU;
  if (!narrow || x.element() == element) [[likely]]
    return stablehlo::Convert(x, element);
  if (runtime::IsComplex(x.element())) x = stablehlo::Real(x);
  x = stablehlo::Convert(x, ElementType::kF32);
  return element == ElementType::kF8E4M3FN ? ToE4M3(x) : ToE8M0(x);
}

}  // namespace

Value To(Value x, ElementType element, const Dims& dims) {
  return stablehlo::BroadcastTo(Cast(x, element), dims);
}

Value ToOutputElement(LoweringContext& cx, Value x) { return Cast(x, cx.output_element()); }

std::vector<Value> ToOutputElements(LoweringContext& cx, std::vector<Value> results) {
  for (size_t i = 0; i < results.size(); ++i)
    results[i] = stablehlo::Convert(results[i], cx.output_element(i));
  return results;
}

Value ToOutput(LoweringContext& cx, Value x) {
  return To(x, cx.output_element(), cx.output_dims());
}

void LowerUnary(LoweringContext& cx, const ir::Node& node, Value (*op)(Value)) {
  cx.SetOutputs(node, op(ToOutputElement(cx, cx.Lowered(node.operands()[0]))));
}

void LowerBinary(LoweringContext& cx, const ir::Node& node, Value (*op)(Value, Value)) {
  auto [a, b] = ToCompute(cx, cx.Lowered(node.operands()[0]), cx.Lowered(node.operands()[1]));
  cx.SetOutputs(node, ToOutputElement(cx, op(a, b)));
}

void LowerCompare(LoweringContext& cx, const ir::Node& node, Direction direction) {
  ElementType common = cx.Physical(cx.CommonDtype());
  Dims dims = cx.output_dims();
  cx.SetOutputs(node,
                stablehlo::Compare(To(cx.Lowered(node.operands()[0]), common, dims),
                                   To(cx.Lowered(node.operands()[1]), common, dims), direction));
}

int64_t WrapDim(int64_t dim, int64_t rank) { return c10::maybe_wrap_dim(dim, rank); }

ElementType IndexElement(int64_t count) {
  return count <= std::numeric_limits<int32_t>::max() ? ElementType::kS32 : ElementType::kS64;
}

Dims ReductionDims(std::optional<c10::IntArrayRef> dims, int64_t rank) {
  if (!dims || dims->empty()) return DimsBetween(0, rank);
  Dims result;
  for (int64_t dim : *dims) {
    dim = WrapDim(dim, rank);
    if (rank > 0) result.push_back(dim);
  }
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

Dims DimsBetween(int64_t first, int64_t end, const Dims& without) {
  Dims dims;
  for (int64_t i = first; i < end; ++i) {
    if (std::find(without.begin(), without.end(), i) == without.end()) dims.push_back(i);
  }
  return dims;
}

Dims PerDimension(c10::IntArrayRef list, size_t rank) {
  return list.size() == 1 ? Dims(rank, list[0]) : Dims(list.begin(), list.end());
}

Value KeepDims(Value reduced, const Dims& input_dims, const Dims& dims) {
  Dims kept = input_dims;
  for (int64_t dim : dims) kept[dim] = 1;
  return stablehlo::Reshape(reduced, kept);
}

ElementType ComputeType(ElementType element) {
  return element == ElementType::kF16 || element == ElementType::kBF16 ? ElementType::kF32
                                                                       : element;
}

}  // namespace torch_xla::lowering
