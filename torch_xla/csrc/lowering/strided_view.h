// Views as StableHLO. Every view of PyTorch (transpose, slice, select, expand, diagonal,
// unfold, as_strided and what they compose to) is sizes, strides and an offset over a
// contiguous root; these two find the slices, reshapes and transposes that it stands for.
#pragma once

#include <c10/util/ArrayRef.h>

#include "stablehlo/ops.h"

namespace torch_xla::lowering {

/// The view (sizes, strides, offset in elements) of `root`, read as PyTorch's as_strided
/// reads the row-major contiguous `root`.
stablehlo::Value ReadStrided(stablehlo::Value root, c10::IntArrayRef sizes,
                             c10::IntArrayRef strides, int64_t offset);
/// `root` with that view's elements replaced by `update` (dims == sizes). Where elements of
/// the view overlap, one of them wins.
stablehlo::Value WriteStrided(stablehlo::Value root, stablehlo::Value update,
                              c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset);

/// Undoes a transposition by `permutation`.
stablehlo::Dims InversePermutation(const stablehlo::Dims& permutation);

}  // namespace torch_xla::lowering
