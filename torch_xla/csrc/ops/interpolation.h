// Linear maps along one dimension whose weights are known when the graph is lowered: interpolation,
// padding by copies, and averages over windows of different sizes. Their gradients are the
// transposed maps.
#pragma once

#include "lowering/context.h"

namespace torch_xla::lowering {

/// weight * input[index].
struct MapTerm {
  int64_t index;
  double weight = 1;
};
/// The rows of a sparse matrix: for each output, the terms of its sum.
using MapRows = std::vector<std::vector<MapTerm>>;

/// Throws a RuntimeError if there are too many rows to write into the program.
void CheckRows(int64_t outputs);
/// The transposed map, from the outputs to `inputs` elements.
MapRows Transposed(const MapRows& rows, int64_t inputs);

/// Maps dimension `dim` of `x`. An output reads only the elements that its row names, so an
/// infinity makes no other output NaN.
Value MapDimension(Value x, int64_t dim, const MapRows& rows);

/// Checks the step between `count` positions within `size`: it must be positive. A step that leaves
/// room for one position is reduced; a RuntimeError names `name` if a second position does not fit.
int64_t CheckedStep(int64_t step, int64_t count, int64_t size, const char* name);
/// Returns `dims` with the size of `dim` replaced.
Dims WithSize(Dims dims, int64_t dim, int64_t size);
/// Repeats each element along `dim` `count` times.
Value RepeatEach(Value x, int64_t dim, int64_t count);
/// Splits dimension `dim` of `x` into two: blocks, and `size` elements in each.
Value SplitDimension(Value x, int64_t dim, int64_t size);

}  // namespace torch_xla::lowering
