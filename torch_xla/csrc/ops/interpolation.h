// Linear maps along one dimension whose weights are known when the graph is lowered: interpolation,
// padding with copies of elements, and averages over windows of different sizes. The gradient of a
// map is the transposed map.
#pragma once

#include "lowering/context.h"

namespace torch_xla::lowering {

/// The product weight * input[index].
struct MapTerm {
  int64_t index;
  double weight = 1;
};
/// The rows of a sparse matrix. Each output is the sum of the terms in its row.
using MapRows = std::vector<std::vector<MapTerm>>;

/// Throws a RuntimeError if a map with so many outputs is too large to be written into the program.
void CheckRows(int64_t outputs);
/// Returns the transposed map, whose inputs are the outputs of `rows` and which has `inputs`
/// outputs.
MapRows Transposed(const MapRows& rows, int64_t inputs);

/// Applies the map to dimension `dim` of `x`. Each output reads only the elements that its row
/// names, so that an infinity in `x` makes no other output NaN.
Value MapDimension(Value x, int64_t dim, const MapRows& rows);

/// Returns the step between `count` positions within `size`, which must be positive. If only one
/// position fits, the step is reduced. Throws a RuntimeError that contains `name` if a second
/// position does not fit.
int64_t CheckedStep(int64_t step, int64_t count, int64_t size, const char* name);
/// Returns `dims` with the size of `dim` replaced.
Dims WithSize(Dims dims, int64_t dim, int64_t size);
/// Repeats each element along `dim` `count` times.
Value RepeatEach(Value x, int64_t dim, int64_t count);
/// Splits dimension `dim` of `x` into two dimensions: the blocks, and the `size` elements of each
/// block.
Value SplitDimension(Value x, int64_t dim, int64_t size);

}  // namespace torch_xla::lowering
