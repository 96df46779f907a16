// Counter-based generators (Philox): the numbers depend on the seed alone.
#include "lowering/random.h"

#include <cmath>

#include "ir/attributes.h"
#include "lowering/elementwise.h"

namespace torch_xla::lowering {
namespace {

using stablehlo::FullLike;

Value Seed(LoweringContext& cx, const ir::Node& node) { return cx.Lowered(node.operands()[0]); }

/// Uniform bits of an unsigned type.
Value Bits(LoweringContext& cx, const ir::Node& node, ElementType element, const Dims& dims) {
  Value seed = stablehlo::Reshape(stablehlo::Convert(Seed(cx, node), ElementType::kU64), {1});
  Value state = stablehlo::Concatenate({seed, stablehlo::ZerosLike(seed)}, 0);
  return stablehlo::RngBitGenerator(state, stablehlo::RngAlgorithm::kPhilox, {element, dims}).bits;
}

/// Uniform in [0, 1) with as many bits as the type's mantissa holds; with `centered`, in
/// (0, 1), half a step from both ends.
Value Uniform(LoweringContext& cx, const ir::Node& node, ElementType element, const Dims& dims,
              bool centered = false) {
  const bool wide = element == ElementType::kF64;
  const ElementType compute = wide ? ElementType::kF64 : ElementType::kF32;
  Value bits = Bits(cx, node, wide ? ElementType::kU64 : ElementType::kU32, dims);
  // With the half step one bit less: 2^24 - 0.5 has no float32.
  const int kept = (wide ? 53 : 24) - (centered ? 1 : 0);
  bits = stablehlo::ShiftRightLogical(bits, FullLike(bits, (wide ? 64 : 32) - kept));
  Value x = stablehlo::Convert(bits, compute);
  if (centered) x = stablehlo::Add(x, FullLike(x, 0.5));
  return stablehlo::Multiply(x, FullLike(x, std::ldexp(1.0, -kept)));
}

/// The type to compute a float output in.
ElementType FloatFor(LoweringContext& cx) {
  return cx.output_element() == ElementType::kF64 ? ElementType::kF64 : ElementType::kF32;
}

Value OperandTo(LoweringContext& cx, const ir::Node& node, size_t i, ElementType element,
                const Dims& dims) {
  return To(cx.Lowered(node.operands()[i]), element, dims);
}

}  // namespace

void LowerRandomUniform(LoweringContext& cx, const ir::Node& node) {
  const ElementType element = FloatFor(cx);
  const Dims dims = cx.output_dims();
  Value u = Uniform(cx, node, element, dims);
  Value from = OperandTo(cx, node, 1, element, dims), to = OperandTo(cx, node, 2, element, dims);
  Value x = stablehlo::Add(from, stablehlo::Multiply(u, stablehlo::Subtract(to, from)));
  cx.SetOutputs(node, ToOutputElement(cx, x));
}

void LowerRandomNormal(LoweringContext& cx, const ir::Node& node) {
  const ElementType element = FloatFor(cx);
  const Dims dims = cx.output_dims();
  // The inverse of the distribution function: sqrt(2) erfinv(2u - 1).
  Value u = Uniform(cx, node, element, dims, /*centered=*/true);
  Value x = stablehlo::ErfInv(
      stablehlo::Subtract(stablehlo::Multiply(u, FullLike(u, 2.0)), FullLike(u, 1.0)));
  x = stablehlo::Multiply(x, FullLike(x, std::sqrt(2.0)));
  x = stablehlo::Add(OperandTo(cx, node, 1, element, dims),
                     stablehlo::Multiply(x, OperandTo(cx, node, 2, element, dims)));
  cx.SetOutputs(node, ToOutputElement(cx, x));
}

void LowerRandomInteger(LoweringContext& cx, const ir::Node& node) {
  const Dims dims = cx.output_dims();
  Value from = OperandTo(cx, node, 1, ElementType::kU64, dims);
  Value to = OperandTo(cx, node, 2, ElementType::kU64, dims);
  // Modulo, as PyTorch's own random_; its bias is below 2^-32 for ranges below 2^32.
  Value x =
      stablehlo::Remainder(Bits(cx, node, ElementType::kU64, dims), stablehlo::Subtract(to, from));
  x = stablehlo::Add(x, from);
  cx.SetOutputs(node, ToOutputElement(cx, stablehlo::BitcastConvert(x, ElementType::kS64)));
}

void LowerRandomBernoulli(LoweringContext& cx, const ir::Node& node) {
  const Dims dims = cx.output_dims();
  Value u = Uniform(cx, node, ElementType::kF32, dims);
  Value p = OperandTo(cx, node, 1, ElementType::kF32, dims);
  cx.SetOutputs(node, ToOutputElement(cx, stablehlo::Compare(u, p, Direction::kLt)));
}

void LowerRandomExponential(LoweringContext& cx, const ir::Node& node) {
  const ElementType element = FloatFor(cx);
  const Dims dims = cx.output_dims();
  Value u = Uniform(cx, node, element, dims, /*centered=*/true);
  Value x = stablehlo::Divide(stablehlo::Negate(stablehlo::Log(u)),
                              OperandTo(cx, node, 1, element, dims));
  cx.SetOutputs(node, ToOutputElement(cx, x));
}

void LowerRandomPermutation(LoweringContext& cx, const ir::Node& node) {
  const Dims dims = cx.output_dims();
  Value keys = Bits(cx, node, ElementType::kU64, dims);
  Value index = stablehlo::Iota(cx.builder(), {ElementType::kS64, dims}, 0);
  std::vector<Value> sorted =
      stablehlo::Sort({keys, index}, 0, /*stable=*/true, [](std::span<const Value> args) {
        return std::vector<Value>{stablehlo::Compare(args[0], args[1], Direction::kLt)};
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
  weights = stablehlo::Reshape(stablehlo::Convert(weights, element), {rows, n});
  if (replacement) {
    // The inverse of the distribution function: how many cumulated weights are not above u.
    stablehlo::Window window;
    window.dimensions = {1, n};
    window.padding = {{0, 0}, {n - 1, 0}};
    Value cumulated = stablehlo::ReduceWindow(weights, window, ReduceOp::kAdd);
    Value total = stablehlo::Slice(cumulated, {0, n - 1}, {rows, n});
    Value u = stablehlo::Multiply(Uniform(cx, node, element, {rows, k}),
                                  stablehlo::BroadcastInDim(total, {rows, k}, {0, 1}));
    Value below =
        stablehlo::Compare(stablehlo::BroadcastInDim(cumulated, {rows, k, n}, {0, 2}),
                           stablehlo::BroadcastInDim(u, {rows, k, n}, {0, 1}), Direction::kLe);
    Value count =
        stablehlo::Reduce(stablehlo::Convert(below, ElementType::kS64), {2}, ReduceOp::kAdd);
    count = stablehlo::Minimum(count, FullLike(count, n - 1));
    cx.SetOutputs(node, stablehlo::Reshape(count, out));
    return;
  }
  // Without replacement: the k smallest of exponential variables divided by their weights
  // (Efraimidis and Spirakis 2006).
  Value u = Uniform(cx, node, element, {rows, n}, /*centered=*/true);
  Value keys = stablehlo::Divide(stablehlo::Negate(stablehlo::Log(u)), weights);
  Value index = stablehlo::Iota(cx.builder(), {ElementType::kS64, {rows, n}}, 1);
  std::vector<Value> sorted =
      stablehlo::Sort({keys, index}, 1, /*stable=*/true, [](std::span<const Value> args) {
        return std::vector<Value>{stablehlo::Compare(args[0], args[1], Direction::kLt)};
      });
  cx.SetOutputs(node, stablehlo::Reshape(stablehlo::Slice(sorted[1], {0, 0}, {rows, k}), out));
}

}  // namespace torch_xla::lowering
