// Lowerings that a yaml line names (`stablehlo::Op`), and the
// conversions that every family of ops needs.
#pragma once

#include <array>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// x converted to the element type of output 0 of the node.
Value ToOutputElement(LoweringContext& cx, Value x);
/// x converted to the element type and broadcast to the dimensions of output 0.
Value ToOutput(LoweringContext& cx, Value x);
/// Each of a node's results converted to the element type of its output.
std::vector<Value> ToOutputElements(LoweringContext& cx, std::vector<Value> results);
/// x converted to `element` and broadcast to `dims` (trailing dimensions aligned).
Value To(Value x, ElementType element, const Dims& dims);

/// The wider type that PyTorch computes a dtype in (float for half and bfloat16).
ElementType ComputeType(ElementType element);
/// Operands in the type that PyTorch computes output 0 in, broadcast to its dimensions:
/// auto [x, y] = ToCompute(cx, self, other);
template <typename... Values>
std::array<Value, sizeof...(Values)> ToCompute(LoweringContext& cx, Values... values) {
  return {To(values, ComputeType(cx.output_element()), cx.output_dims())...};
}

/// The operand converted to the output's dtype, then `op`.
void LowerUnary(LoweringContext& cx, const ir::Node& node, Value (*op)(Value));
/// `op` of both operands as ToCompute gives them.
void LowerBinary(LoweringContext& cx, const ir::Node& node, Value (*op)(Value, Value));
/// Both operands promoted together and broadcast, then compared.
void LowerCompare(LoweringContext& cx, const ir::Node& node, Direction direction);

/// A dimension that may be negative, as a non-negative one; IndexError where there is none such.
/// Rank 0 counts as rank 1.
int64_t WrapDim(int64_t dim, int64_t rank);
/// The smallest type that numbers `count` elements.
ElementType IndexElement(int64_t count);
/// Wrapped, sorted, distinct; an empty or absent list means all dimensions.
Dims ReductionDims(std::optional<c10::IntArrayRef> dims, int64_t rank);
/// A parameter list for `rank` spatial dimensions; a list of one stands for all of them.
Dims PerDimension(c10::IntArrayRef list, size_t rank);
/// Puts size-1 dimensions back where `dims` of a reduction were.
Value KeepDims(Value reduced, const Dims& input_dims, const Dims& dims);

}  // namespace torch_xla::lowering
