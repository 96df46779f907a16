// Lowers views to StableHLO. Every view of PyTorch (transpose, slice, select, expand, diagonal,
// unfold, as_strided and their compositions) has sizes, strides and an offset over a contiguous
// root. These functions find the slices, reshapes and transposes that it consists of.
#pragma once

#include <c10/util/ArrayRef.h>

#include <optional>

#include "stablehlo/ops.h"

namespace torch_xla::lowering {

/// The offset of a view in elements: a known number, or a parameter of the program. For a parameter
/// `known` is an example: the same StableHLO serves all offsets with equal ViewStructure.
struct ViewOffset {
  int64_t known;
  std::optional<stablehlo::Value> parameter;
  ViewOffset(int64_t offset, std::optional<stablehlo::Value> value = {})  // NOLINT
      : known(offset), parameter(value) {}
};

/// A value that is equal for two offsets of a view if one program can serve both. `written` says
/// that the view is written (view_update).
uint64_t ViewStructure(const stablehlo::Dims& root, c10::IntArrayRef sizes,
                       c10::IntArrayRef strides, int64_t offset, bool written);

/// Whether two elements of the view may be the same element of the root, but for strides of 0.
bool MayOverlap(c10::IntArrayRef sizes, c10::IntArrayRef strides);

/// Reads the view (sizes, strides, offset in elements) of `root`, as PyTorch's as_strided reads the
/// contiguous row-major `root`.
stablehlo::Value ReadStrided(stablehlo::Value root, c10::IntArrayRef sizes,
                             c10::IntArrayRef strides, const ViewOffset& offset);
/// `root` with the view's elements replaced by `update` (whose dims equal sizes). If elements of
/// the view overlap, one that changes wins.
stablehlo::Value WriteStrided(stablehlo::Value root, stablehlo::Value update,
                              c10::IntArrayRef sizes, c10::IntArrayRef strides,
                              const ViewOffset& offset);

/// The permutation that undoes a transposition by `permutation`.
stablehlo::Dims InversePermutation(const stablehlo::Dims& permutation);

}  // namespace torch_xla::lowering
