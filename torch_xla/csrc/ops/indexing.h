// Reads and writes at the positions that an index tensor gives. All operators with an index use
// these functions.
#pragma once

#include <optional>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// Returns the slices of `x` along `dim` that `index` selects. The result has the dimensions of
/// `index` in place of dimension `dim`.
/// Indices out of range are clamped.
Value Take(Value x, int64_t dim, Value index);
/// The inverse of Take. Returns `x` with each slice of `updates`, which has the shape of Take's
/// result, stored at its index, or combined by `op` with the slice that is there. Indices out of
/// range are skipped.
Value Put(Value x, int64_t dim, Value index, Value updates,
          std::optional<ReduceOp> op = std::nullopt);

/// PyTorch's gather: result[i][j][k] = x[i][index[i][j][k]][k] for dim = 1.
Value TakeAlong(Value x, int64_t dim, Value index);
/// PyTorch's scatter: the inverse of TakeAlong; `updates` has the shape of `index`.
Value PutAlong(Value x, int64_t dim, Value index, Value updates,
               std::optional<ReduceOp> op = std::nullopt);

/// Returns the matrix x[t] of an array `x` with three dimensions. `t` is an integer of rank 0.
Value AtTime(Value x, Value t);
/// Returns `x` with the matrix x[t] replaced by `update`.
Value SetTime(Value x, Value update, Value t);

/// Returns a value of rank 0 with rank 1, and any other value unchanged.
Value AtLeast1d(Value x);

}  // namespace torch_xla::lowering
