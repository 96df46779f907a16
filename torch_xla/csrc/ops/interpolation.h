// Linear maps along one dimension that are known when the graph is lowered: interpolation,
// padding by copies, averages over windows of different sizes, and their gradients, which
// are the transposed maps.
#pragma once

#include "lowering/context.h"

namespace torch_xla::lowering {

/// weight * input[index].
struct MapTerm {
  int64_t index;
  double weight = 1;
};
/// For each output the terms of its sum: the rows of a sparse matrix.
using MapRows = std::vector<std::vector<MapTerm>>;

/// Rows are written out in the program: RuntimeError where there would be too many.
void CheckRows(int64_t outputs);
/// The map from outputs back to `inputs` elements.
MapRows Transposed(const MapRows& rows, int64_t inputs);

/// `x` with dimension `dim` mapped. Only the elements that a row names are read, so an
/// infinity spoils no other output.
Value MapDimension(Value x, int64_t dim, const MapRows& rows);

/// A step between `count` places within `size`: positive, and no larger than leaves the first one.
/// RuntimeError with `name` for one that has no room for the second.
int64_t CheckedStep(int64_t step, int64_t count, int64_t size, const char* name);
/// `dims` with the size of `dim` replaced.
Dims WithSize(Dims dims, int64_t dim, int64_t size);
/// Each element along `dim` `count` times.
Value RepeatEach(Value x, int64_t dim, int64_t count);
/// `x` with dimension `dim` as two: blocks of `size` elements.
Value SplitDimension(Value x, int64_t dim, int64_t size);

}  // namespace torch_xla::lowering
