#include "tensor/view.h"

#include <c10/util/accumulate.h>
#include <c10/util/strides.h>

#include <algorithm>

#include "XLAOps.h"
#include "tensor/node_factory.h"

namespace torch_xla::tensor {
namespace {

/// The offset is written as a number (a possible parameter), unless the view covers the whole base
/// and cannot begin elsewhere.
ir::Words StepAttributes(const ViewStep& step, ir::ShapeRef base) {
  ir::Words words;
  ir::AttributeWriter writer(words);
  writer.IntList(step.sizes);
  writer.IntList(step.strides);
  if (c10::multiply_integers(step.sizes) == base->numel) {
    writer.Int(step.offset);
  } else {
    writer.IntNumber(step.offset);
  }
  return words;
}

struct Dim {
  int64_t stride, size;

  auto operator<=>(const Dim&) const = default;
};

/// The dimensions with more than one element, by increasing stride.
c10::SmallVector<Dim, 5> FromInnermost(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  c10::SmallVector<Dim, 5> dims;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != 1) dims.push_back({strides[i], sizes[i]});
  }
  std::sort(dims.begin(), dims.end());
  return dims;
}

/// Whether all elements of the view are distinct elements of the base.
bool IsInjective(const ViewStep& step) {
  if (IsDense(step.sizes, step.strides)) return true;
  int64_t extent = 1;
  for (const auto& [stride, size] : FromInnermost(step.sizes, step.strides)) {
    if (stride < extent) return false;
    extent = stride * size;
  }
  return true;
}

/// Whether the node writes exactly the elements that the step reads, so that its operand 1 is the
/// result: `x[i] += y` reads, writes, reads and writes x[i].
bool WritesOnly(const ir::Node& node, const ViewStep& step) {
  if (&node.op() != &ir::ops::as_strided_view_update) return false;
  ir::AttributeReader attributes(node.attributes());
  return attributes.IntList() == c10::IntArrayRef(step.sizes) &&
         attributes.IntList() == c10::IntArrayRef(step.strides) &&
         attributes.Int() == step.offset && IsInjective(step);
}

/// Composes two steps: `outer`, which reads the result of `inner`, as a single step over the base
/// of `inner`. Returns nothing if strides cannot express it, or if `inner` transposes.
std::optional<ViewStep> Compose(const ViewStep& inner, const ViewStep& outer) {
  struct Dim {
    int64_t size, stride;  // in the base
    int64_t span;          // number of elements of `inner` that one index in this dimension spans
    int64_t last;          // the last index that is read
  };
  c10::SmallVector<Dim, 5> dims;  // innermost first
  int64_t numel = 1;
  for (size_t i = inner.sizes.size(); i-- > 0; numel *= inner.sizes[i]) {
    const int64_t size = inner.sizes[i], stride = inner.strides[i];
    if (size == 0) return std::nullopt;
    if (size == 1) continue;
    if (!dims.empty() && stride == dims.back().stride * dims.back().size) {
      dims.back().size *= size;
    } else if (!dims.empty() && stride < dims.back().stride) {
      return std::nullopt;
    } else {
      dims.push_back({size, stride, numel, 0});
    }
  }
  ViewStep step{outer.sizes, Ints(outer.sizes.size(), 0), inner.offset, std::nullopt};
  for (Dim& dim : dims) {
    dim.last = outer.offset / dim.span % dim.size;
    step.offset += dim.last * dim.stride;
  }
  for (size_t i = 0; i < outer.sizes.size(); ++i) {
    if (outer.sizes[i] == 0) return std::nullopt;
    if (outer.sizes[i] == 1 || outer.strides[i] == 0) continue;
    auto dim = std::find_if(dims.rbegin(), dims.rend(),
                            [&](const Dim& d) { return outer.strides[i] >= d.span; });
    if (dim == dims.rend() || outer.strides[i] % dim->span != 0) return std::nullopt;
    const int64_t steps = outer.strides[i] / dim->span;
    dim->last += steps * (outer.sizes[i] - 1);
    if (dim->last >= dim->size) return std::nullopt;
    step.strides[i] = steps * dim->stride;
  }
  return step;
}

ir::Value Read(const ir::Value& base, const ViewStep& step) {
  if (step.bitcast) {
    return MakeNode(&ir::ops::bitcast, {base}, {}, ir::GetShape(*step.bitcast, step.sizes));
  }
  if (const ir::Node& node = *base.node; WritesOnly(node, step)) {
    const ir::Value& written = node.operands()[1];
    if (written.shape() == ir::GetShape(base.shape()->dtype, step.sizes)) return written;
  }
  if (&base.node->op() == &ir::ops::as_strided) {
    // x[:, :n].flatten()[-1] becomes a view of x, so that n is not part of the program.
    ir::AttributeReader inner(base.node->attributes());
    ViewStep first{Ints(inner.IntList()), Ints(inner.IntList()), inner.Int(), std::nullopt};
    if (auto composed = Compose(first, step))
      return Read(ir::Value(base.node->operands()[0]), *composed);
  }
  return MakeStrided(base, step);
}

/// `bools`, a view of `base` after a write, as bytes: elements that were not written keep their
/// bits.
ir::Value BytesOf(const ir::Value& base, const ir::Value& bools) {
  const auto bytes = [](const ir::Value& value, c10::IntArrayRef sizes) {
    return MakeNode(&ir::ops::bitcast, {value}, {}, ir::GetShape(c10::kByte, sizes));
  };
  const ir::Node& node = *bools.node;
  const auto& sizes = bools.shape()->dims;
  if (&node.op() == &ir::ops::bitcast && node.operands()[0] == base) return bytes(base, sizes);
  if (&node.op() != &ir::ops::as_strided_view_update) return bytes(bools, sizes);
  const ir::Value& written = node.operands()[1];
  return MakeNode(&node.op(),
                  {BytesOf(base, node.operands()[0]), bytes(written, written.shape()->dims)},
                  node.attributes(), ir::GetShape(c10::kByte, sizes));
}

ir::Value Write(const ir::Value& base, const ViewStep& step, ir::Value value) {
  if (step.bitcast) {
    if (*step.bitcast == c10::kBool) value = BytesOf(base, value);
    return MakeNode(&ir::ops::bitcast, {std::move(value)}, {}, base.shape());
  }
  if (const ir::Node& node = *base.node; WritesOnly(node, step)) {
    if (node.operands()[1] == value) return base;
    return Write(ir::Value(node.operands()[0]), step, std::move(value));
  }
  return MakeNode(&ir::ops::as_strided_view_update, {base, std::move(value)},
                  StepAttributes(step, base.shape()), base.shape());
}

}  // namespace

ir::Value MakeStrided(const ir::Value& base, const ViewStep& step) {
  const ir::ShapeRef shape = base.shape();
  return MakeNode(&ir::ops::as_strided, {base}, StepAttributes(step, shape),
                  ir::GetShape(shape->dtype, step.sizes));
}

Ints ContiguousStrides(c10::IntArrayRef sizes) { return c10::contiguous_strides(sizes); }

bool IsDense(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] == 1) continue;
    if (strides[i] != stride) return false;
    stride *= std::max<int64_t>(sizes[i], 1);
  }
  return true;
}

bool FillsBlock(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  int64_t extent = 1;
  for (const auto& [stride, size] : FromInnermost(sizes, strides)) {
    if (stride != extent) return false;
    extent *= size;
  }
  return true;
}

bool OverlapsItself(const View& view) {
  if (c10::multiply_integers(view.last().sizes) == 0) return false;
  for (const ViewStep& step : view.steps) {
    for (size_t i = 0; i < step.strides.size(); ++i) {
      if (step.strides[i] == 0 && step.sizes[i] > 1) return true;
    }
  }
  return false;
}

ir::Value ReadView(const Storage& storage, const View* view) {
  ir::Value value = storage.value();
  if (view) {
    for (const ViewStep& step : view->steps) value = Read(value, step);
  }
  return value;
}

void WriteView(Storage& storage, const View* view, ir::Value value) {
  if (!view) {
    storage.Assign(std::move(value));
    return;
  }
  // Reads the base of each step, then writes back from the last step to the first.
  c10::SmallVector<ir::Value, 2> bases{storage.value()};
  for (size_t i = 0; i + 1 < view->steps.size(); ++i) {
    bases.push_back(Read(bases.back(), view->steps[i]));
  }
  for (size_t i = view->steps.size(); i-- > 0;) {
    value = Write(bases[i], view->steps[i], std::move(value));
  }
  storage.Assign(std::move(value));
}

ViewPtr RestrideView(const View* base, Ints sizes, Ints strides, int64_t offset) {
  auto view = c10::make_intrusive<View>();
  if (base) {
    for (size_t i = 0; i + 1 < base->steps.size(); ++i) view->steps.push_back(base->steps[i]);
    if (base->last().bitcast) view->steps.push_back(base->last());
  }
  view->steps.push_back({std::move(sizes), std::move(strides), offset, std::nullopt});
  return view;
}

ViewPtr AppendStep(const View* base, ViewStep step) {
  auto view = c10::make_intrusive<View>();
  if (base) view->steps = base->steps;
  view->steps.push_back(std::move(step));
  return view;
}

}  // namespace torch_xla::tensor
