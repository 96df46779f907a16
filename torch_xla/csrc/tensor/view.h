// A view: how a tensor looks at the storage it shares.
//
// All of PyTorch's view operations are (sizes, strides, offset) over the elements of
// something contiguous, so one kind of step serves them all; a step begins anew only
// where strides cannot express it (a view of a transposed tensor: the user sees xla
// tensors as contiguous) or where the element type changes.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <optional>

#include "ir/node.h"
#include "tensor/storage.h"

namespace torch_xla::lazy {

using Ints = c10::SmallVector<int64_t, 5>;

/// Strides of a row-major contiguous array.
Ints ContiguousStrides(c10::IntArrayRef sizes);
/// Whether the elements follow each other in memory in row-major order.
bool IsDense(c10::IntArrayRef sizes, c10::IntArrayRef strides);
/// Whether they are a block of memory without holes, in whatever order.
bool FillsBlock(c10::IntArrayRef sizes, c10::IntArrayRef strides);

struct ViewStep {
  Ints sizes, strides;
  int64_t offset = 0;
  /// Set: the base's bytes as another dtype (strides and offset are unused).
  std::optional<c10::ScalarType> bitcast;

  bool operator==(const ViewStep&) const = default;
};

/// The node that reads `base`, something contiguous, as the step says, which is of strides.
ir::Value MakeStrided(const ir::Value& base, const ViewStep& step);

class View : public c10::intrusive_ptr_target {
 public:
  /// Applied one after the other to the storage; never empty.
  c10::SmallVector<ViewStep, 1> steps;

  const ViewStep& last() const { return steps.back(); }
};

using ViewPtr = c10::intrusive_ptr<View>;

/// Whether several of its elements are one in memory.
bool OverlapsItself(const View& view);

/// The content of `view` (null: everything) of a storage.
ir::Value ReadView(const Storage& storage, const View* view);
/// Writes `value` (of the view's shape) through the view into the storage.
void WriteView(Storage& storage, const View* view, ir::Value value);

/// `base` (null: the whole storage of shape `root`) looked at through one more step.
/// Strided steps are over what `base`'s last step looks at, not over its result.
ViewPtr RestrideView(const View* base, Ints sizes, Ints strides, int64_t offset);
/// A new step over the result of `base`.
ViewPtr AppendStep(const View* base, ViewStep step);

}  // namespace torch_xla::lazy
