// Reads and writes at positions given by an index tensor. All ops with an index use them.
#pragma once

#include <optional>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// Selects slices of `x` along `dim`. The result has the dimensions of `index` in place of `dim`.
/// Indices out of range are clamped.
Value Take(Value x, int64_t dim, Value index);
/// The inverse of Take: stores each slice of `updates` (shaped like Take's result) in `x`, or
/// combines it with the slice of `x` by `op`. Indices out of range are skipped.
Value Put(Value x, int64_t dim, Value index, Value updates,
          std::optional<ReduceOp> op = std::nullopt);

/// PyTorch's gather: result[i][j][k] = x[i][index[i][j][k]][k] for dim = 1.
Value TakeAlong(Value x, int64_t dim, Value index);
/// PyTorch's scatter: the inverse of TakeAlong; `updates` has the shape of `index`.
Value PutAlong(Value x, int64_t dim, Value index, Value updates,
               std::optional<ReduceOp> op = std::nullopt);

/// Reads the matrix x[t], where x has three dimensions and t is an integer of rank 0; and replaces
/// it.
Value AtTime(Value x, Value t);
Value SetTime(Value x, Value update, Value t);

/// Reshapes rank 0 to rank 1.
Value AtLeast1d(Value x);

}  // namespace torch_xla::lowering
