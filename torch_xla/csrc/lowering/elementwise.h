// Lowerings that a yaml line names (`stablehlo::Op`), and the conversions that every family of
// operations needs.
#pragma once

#include <array>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// x converted to the element type of output 0 of the node.
Value ToOutputElement(LoweringContext& cx, Value x);
/// x converted to the element type and broadcast to the dimensions of output 0.
Value ToOutput(LoweringContext& cx, Value x);
/// Each result converted to the element type of its output.
std::vector<Value> ToOutputElements(LoweringContext& cx, std::vector<Value> results);
/// x converted to `element` and broadcast to `dims` (trailing dimensions aligned).
Value To(Value x, ElementType element, const Dims& dims);

/// The wider type in which PyTorch computes a dtype (float for half and bfloat16).
ElementType ComputeType(ElementType element);
/// The operands in the type in which PyTorch computes output 0, broadcast to its dimensions: auto
/// [x, y] = ToCompute(cx, self, other);
template <typename... Values>
std::array<Value, sizeof...(Values)> ToCompute(LoweringContext& cx, Values... values) {
  return {To(values, ComputeType(cx.output_element()), cx.output_dims())...};
}

/// Converts the operand to the output's dtype and applies `op`.
void LowerUnary(LoweringContext& cx, const ir::Node& node, Value (*op)(Value));
/// Applies `op` to both operands as ToCompute converts them.
void LowerBinary(LoweringContext& cx, const ir::Node& node, Value (*op)(Value, Value));
/// Promotes and broadcasts both operands, then compares them.
void LowerCompare(LoweringContext& cx, const ir::Node& node, Direction direction);

/// Converts a dimension that may be negative to a non-negative one. Throws IndexError if there is
/// no such dimension. Rank 0 counts as rank 1.
int64_t WrapDim(int64_t dim, int64_t rank);
/// The smallest element type that can index `count` elements.
ElementType IndexElement(int64_t count);
/// The dimensions wrapped, sorted and distinct. An empty or absent list means all dimensions.
Dims ReductionDims(std::optional<c10::IntArrayRef> dims, int64_t rank);
/// The dimensions from `first` up to `end`, without those of `without`.
Dims DimsBetween(int64_t first, int64_t end, const Dims& without = {});
/// A parameter list for `rank` spatial dimensions; a list with one element stands for all of them.
Dims PerDimension(c10::IntArrayRef list, size_t rank);
/// Inserts dimensions of size 1 where a reduction removed `dims`.
Value KeepDims(Value reduced, const Dims& input_dims, const Dims& dims);

}  // namespace torch_xla::lowering
