// Where a tensor lies in its storage.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "tensor/view.h"

namespace torch_xla::aten {

/// Where a tensor begins in its storage, in bytes, and its strides there, in its elements.
struct Layout {
  tensor::Ints strides;
  int64_t begin;
};

/// The layout of a tensor of these sizes, which is a view of a storage with elements of `root`, or
/// the whole storage if `view` is null. Nothing for a view that no strides express. The bits for
/// conj and neg are not looked at.
std::optional<Layout> LayoutOf(const tensor::View* view, c10::ScalarType root,
                               c10::IntArrayRef sizes);

}  // namespace torch_xla::aten
