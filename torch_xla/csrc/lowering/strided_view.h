// Views as StableHLO. Every view of PyTorch (transpose, slice, select, expand, diagonal,
// unfold, as_strided and what they compose to) is sizes, strides and an offset over a
// contiguous root; these two find the slices, reshapes and transposes that it stands for.
#pragma once

#include <c10/util/ArrayRef.h>

#include <optional>

#include "stablehlo/ops.h"

namespace torch_xla::lowering {

/// Where a view begins, in elements: known, or a parameter of the program. Then `known` is an
/// example: the same StableHLO serves all offsets of equal ViewStructure.
struct ViewOffset {
  int64_t known;
  std::optional<stablehlo::Value> parameter;
  ViewOffset(int64_t offset, std::optional<stablehlo::Value> value = {})  // NOLINT
      : known(offset), parameter(value) {}
};

/// What must be equal of two offsets of a view (`written`: a view_update) for one program to serve
/// both.
uint64_t ViewStructure(const stablehlo::Dims& root, c10::IntArrayRef sizes,
                       c10::IntArrayRef strides, int64_t offset, bool written);

/// The view (sizes, strides, offset in elements) of `root`, read as PyTorch's as_strided
/// reads the row-major contiguous `root`.
stablehlo::Value ReadStrided(stablehlo::Value root, c10::IntArrayRef sizes,
                             c10::IntArrayRef strides, const ViewOffset& offset);
/// `root` with that view's elements replaced by `update` (dims == sizes). Where elements of
/// the view overlap, one of them wins.
stablehlo::Value WriteStrided(stablehlo::Value root, stablehlo::Value update,
                              c10::IntArrayRef sizes, c10::IntArrayRef strides,
                              const ViewOffset& offset);

/// Undoes a transposition by `permutation`.
stablehlo::Dims InversePermutation(const stablehlo::Dims& permutation);

}  // namespace torch_xla::lowering
