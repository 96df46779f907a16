// A view: how a tensor accesses the storage that it shares.
//
// All of PyTorch's view operations are (sizes, strides, offset) over the elements of a contiguous
// array, so one kind of step serves them all. A new step is needed only if strides cannot express
// the view (a view of a transposed tensor: the user sees xla tensors as contiguous), or if the
// element type changes.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <optional>

#include "ir/node.h"
#include "tensor/storage.h"

namespace torch_xla::tensor {

using Ints = c10::SmallVector<int64_t, 5>;

/// Strides of a row-major contiguous array.
Ints ContiguousStrides(c10::IntArrayRef sizes);
/// Whether the elements follow each other in memory in row-major order.
bool IsDense(c10::IntArrayRef sizes, c10::IntArrayRef strides);
/// Whether the elements fill a block of memory without holes, in any order.
bool FillsBlock(c10::IntArrayRef sizes, c10::IntArrayRef strides);

struct ViewStep {
  Ints sizes, strides;
  int64_t offset = 0;
  /// If set, the step reads the base's bytes as this dtype; strides and offset are unused.
  std::optional<c10::ScalarType> bitcast;

  bool operator==(const ViewStep&) const = default;
};

/// Makes the node that reads the contiguous `base` by a strided step.
ir::Value MakeStrided(const ir::Value& base, const ViewStep& step);

class View : public c10::intrusive_ptr_target {
 public:
  /// The steps, applied one after the other to the storage; never empty.
  c10::SmallVector<ViewStep, 1> steps;

  const ViewStep& last() const { return steps.back(); }
};

using ViewPtr = c10::intrusive_ptr<View>;

/// Whether several elements of the view share memory.
bool OverlapsItself(const View& view);

/// The content of a storage seen through `view` (null: the whole storage).
ir::Value ReadView(const Storage& storage, const View* view);
/// Writes `value`, which has the view's shape, through the view into the storage.
void WriteView(Storage& storage, const View* view, ir::Value value);

/// The view `base` (null: the whole storage) with one more strided step. The sizes, strides and
/// offset count elements of the base of `base`'s last step, not of its result
/// (of its result if that step is a bitcast).
ViewPtr RestrideView(const View* base, Ints sizes, Ints strides, int64_t offset);
/// A view with a new step over the result of `base`.
ViewPtr AppendStep(const View* base, ViewStep step);

}  // namespace torch_xla::tensor
