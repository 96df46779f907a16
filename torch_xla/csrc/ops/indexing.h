// Reading and writing where an index tensor says: what all ops that take one are made of.
#pragma once

#include <optional>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// Dimension `dim` of `x` replaced by the dimensions of `index`: the slices that it names.
/// Indices out of range are clamped.
Value Take(Value x, int64_t dim, Value index);
/// The inverse: each slice of `updates` (of Take's shape) is stored in `x`, or combined with
/// what is there by `op`. Indices out of range are skipped.
Value Put(Value x, int64_t dim, Value index, Value updates,
          std::optional<ReduceOp> op = std::nullopt);

/// PyTorch's gather: result[i][j][k] = x[i][index[i][j][k]][k] for dim = 1.
Value TakeAlong(Value x, int64_t dim, Value index);
/// PyTorch's scatter: the inverse of TakeAlong; `updates` has the shape of `index`.
Value PutAlong(Value x, int64_t dim, Value index, Value updates,
               std::optional<ReduceOp> op = std::nullopt);

/// Element t (rank 0, an integer) of the first of three dimensions, as a matrix; and `x` with
/// another one there.
Value AtTime(Value x, Value t);
Value SetTime(Value x, Value update, Value t);

/// Rank 0 as rank 1.
Value AtLeast1d(Value x);

}  // namespace torch_xla::lowering
