// Casts, views and writes into views, and arrays that are made: fills, ranges, random numbers.
#include <algorithm>
#include <optional>

#include "lowering/strided_view.h"
#include "sizes/rules_common.h"

namespace torch_xla::sizes::bounded {
namespace {

void Cast(G& g) { g.EmitShaped(g.Values(), {}, g.In(0).layout); }

/// The elements of an array with a dimension for each of its factors, with one dimension indexed.
ir::Value TakeAlong(G& g, const ir::Value& value, const BoundedDim& all, size_t along,
                    const ir::Value& index) {
  std::vector<int64_t> bounds(all.size());
  for (size_t i = 0; i < all.size(); ++i) bounds[i] = all[i].bound;
  return Select(g, Contiguous(g, value, bounds), along, index);
}

int64_t ElementsOf(const Result& of) {
  int64_t elements = 1;
  for (int64_t bound : BoundsOf(of.layout)) elements *= bound;
  return elements;
}

/// For each element of a view that lies like `layout`, its index in the padded `base`.
ir::Value ViewPlaces(G& g, const Result& base, const StridedView& view,
                     const BoundedLayout& layout) {
  const std::vector<int64_t> bounds = BoundsOf(layout);
  int64_t largest = view.offset;
  for (size_t d = 0; d < bounds.size(); ++d) largest += bounds[d] * view.strides[d];
  const c10::ScalarType dtype = IndexType(std::max(largest, ElementsOf(base)));
  const BoundedDim all = AllFactors(base.layout);
  const ir::Value index =
      g.Make(ir::ops::minimum,
             {Places(g, layout, view.strides, view.offset, dtype), Number(SizeOf(all) - 1, dtype)});
  return PlaceOf(g, index, all);
}

/// A view whose elements lie at no regular places takes each by its index.
void ViewByIndex(G& g, const Result& base, const StridedView& view, const BoundedLayout& layout) {
  for (size_t d = 0; d < layout.size(); ++d) {
    if (g.ResultVaries(0, d) && !Varies(layout[d]))
      Refuse("a view is not regular along a varying size");
  }
  const ir::Value all =
      Select(g, g.View(base.value, {ElementsOf(base)}, {1}), 0, ViewPlaces(g, base, view, layout));
  g.Set(0, Contiguous(g, all, BoundsOf(layout)), layout);
}

/// If a view has one index of a varying size, such as x[:, -1], takes that index from `base` and
/// returns true. The index is a parameter of the program, since it differs from size to size.
bool TakeIndex(G& g, Result& base, StridedView& view) {
  const BoundedDim all = AllFactors(base.layout);
  int64_t stride = 1;
  for (size_t k = all.size(); k-- > 0; stride *= all[k].size) {
    const Factor factor = all[k];
    if (factor.size == 0) Refuse("it is empty");
    const int64_t outer = stride * factor.size, index = view.offset / stride % factor.size;
    if (!factor.varies || index == 0) {
      if (k == 0) return false;
      continue;
    }
    const bool is_taken = [&] {
      for (size_t d = 0; d < view.sizes.size(); ++d) {
        const int64_t step = view.strides[d];
        if (view.sizes[d] == 1 || step == 0) continue;
        // The dimension moves along this factor, or crosses it from an inner factor.
        if (step < outer && (step >= stride || step * view.sizes[d] > stride)) return true;
        if (step >= outer && step % outer != 0) return true;
      }
      return false;
    }();
    if (is_taken) {
      if (k == 0) return false;
      continue;
    }
    for (size_t d = 0; d < view.sizes.size(); ++d) {
      if (view.sizes[d] != 1 && view.strides[d] >= outer) view.strides[d] /= factor.size;
    }
    view.offset = view.offset / outer * stride + view.offset % stride;
    base.value = TakeAlong(g, base.value, all, k, g.View(Number(index), {1}, {1}));
    base.layout.clear();
    for (size_t i = 0; i < all.size(); ++i)
      base.layout.push_back(i == k ? BoundedDim{} : BoundedDim{all[i]});
    return true;
  }
  return false;
}

/// If dimension `d` of a view is a part of a varying size that begins at another place from size
/// to size, as the gradient of a concatenation is, takes that part, which is like `made`.
void TakeRange(G& g, Result& base, StridedView& view, size_t d, const BoundedDim& made,
               int64_t first) {
  BoundedDim all = AllFactors(base.layout);
  int64_t stride = 1;
  size_t k = all.size();
  while (k > 0 && stride < view.strides[d]) stride *= all[--k].size;
  if (stride != view.strides[d] || k == 0 || made.size() != 1 || view.sizes[d] < 2) return;
  const Factor factor = all[--k];
  const int64_t size = view.sizes[d], start = view.offset / stride % factor.size;
  if (!factor.varies || size >= factor.size || start + size > factor.size ||
      factor.size - size == factor.first - first)
    return;
  const int64_t outer = stride * factor.size;
  std::vector<int64_t> strides = view.strides;
  for (size_t i = 0; i < view.sizes.size(); ++i) {
    if (i == d || view.sizes[i] == 1 || strides[i] == 0) continue;
    if (strides[i] < outer) {
      if (strides[i] * view.sizes[i] > stride) return;  // it moves along the factor, too
      continue;
    }
    if (strides[i] % outer != 0) return;
    strides[i] = strides[i] / outer * stride * size;
  }
  view.strides = std::move(strides);
  view.offset = view.offset / outer * stride * size + view.offset % stride;
  const ir::Value moved = Add(g, g.Iota(made[0].bound), Number(start));
  const ir::Value last = tensor::MakeConstant(factor.bound - 1, c10::ScalarType::Long, false);
  base.value = TakeAlong(g, base.value, all, k, g.Make(ir::ops::minimum, {moved, last}));
  all[k] = made[0];
  base.layout.clear();
  for (const Factor& one : all) base.layout.push_back({one});
}

void AsStrided(G& g) {
  const auto sizes = g.Ints("size"), strides = g.Ints("stride");
  c10::SmallVector<bool, 8> varies;
  c10::SmallVector<int64_t, 8> first;
  const ir::ShapeRef shape = g.first();
  for (size_t d = 0; d < sizes.size(); ++d) {
    varies.push_back(g.ResultVaries(0, d));
    first.push_back(shape->dims[d]);
  }
  const StridedView given{sizes.vec(), strides.vec(), g.Int("storage_offset")};
  StridedView exact = given;
  Result base = g.In(0);
  // A slice of a fixed size has no bound beyond its end.
  int64_t stride = 1;
  const auto& whole = g.node().operands()[0].shape()->dims;
  for (size_t k = whole.size(); g.makes() && k-- > 0; stride *= whole[k]) {
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (whole[k] > 1 && sizes[d] > 1 && strides[d] == stride)
        g.Made(0, d, std::max(sizes[d], whole[k]));
    }
  }
  const BoundedLayout made = g.MadeLayout(0);
  if (g.node().shape()->numel == 0) {
    const ir::Value zero = tensor::MakeConstant(int64_t{0}, g.node().shape()->dtype, false);
    g.Set(0, tensor::Expand(zero, BoundsOf(made)), made);
    return;
  }
  while (TakeIndex(g, base, exact)) {
  }
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (varies[d]) TakeRange(g, base, exact, d, made[d], first[d]);
  }
  std::optional<BoundedView> regular;
  try {
    regular = ViewOf(base.layout, exact, made, varies, first);
  } catch (const SizesRefused&) {
    return ViewByIndex(g, g.In(0), given, made);
  }
  BoundedView& view = *regular;
  // A slice may begin at another place each time, so that its bound may lie behind the end.
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (g.makes() && Varies(made[d]) && (given.offset != 0 || !Varies(view.layout[d])))
      return ViewByIndex(g, g.In(0), given, made);
  }
  ir::Words words = g.node().attributes();
  for (size_t d = 0; d < sizes.size(); ++d) {
    words[g.Named("size").word + d] = static_cast<uint64_t>(view.view.sizes[d]);
    words[g.Named("stride").word + d] = static_cast<uint64_t>(view.view.strides[d]);
  }
  words[g.Named("storage_offset").word] = static_cast<uint64_t>(view.view.offset);
  g.EmitShaped({base.value}, std::move(words), view.layout);
}

/// A write into a view whose elements lie at no regular places, such as a diagonal.
void WriteByIndex(G& g, const Result& base, const StridedView& view, const Result& value) {
  const int64_t elements = ElementsOf(base), written = ElementsOf(value);
  if (lowering::MayOverlap(view.sizes, view.strides)) Refuse("it writes an element twice");
  ir::Value index = tensor::Cast(ViewPlaces(g, base, view, value.layout), c10::ScalarType::Long);
  if (const ir::Value within = g.Within(value.layout, Dims(value.layout.size(), true))) {
    index = g.Make(ir::ops::where_self,
                   {g.View(tensor::Expand(within, BoundsOf(value.layout)), {written}, {1}), index,
                    tensor::MakeConstant(elements, c10::ScalarType::Long, false)});
  }
  ir::Words words;
  ir::AttributeWriter(words).Int(0);
  const ir::Value all =
      g.Make(ir::ops::scatter_src,
             {g.View(base.value, {elements}, {1}), index, g.View(value.value, {written}, {1})},
             std::move(words));
  g.Set(0, Contiguous(g, all, BoundsOf(base.layout)), base.layout);
}

/// A write into a part of an array: padding of what is written leaves the array as it is.
void ViewUpdate(G& g) {
  const Result &base = g.In(0), &value = g.In(1);
  const auto sizes = g.Ints("size"), strides = g.Ints("stride");
  if (base.value.shape()->numel == 0) Refuse("it is empty");
  c10::SmallVector<bool, 8> varies;
  c10::SmallVector<int64_t, 8> first;
  for (const BoundedDim& dim : value.layout) {
    varies.push_back(Varies(dim));
    first.push_back(dim.size() == 1 ? dim[0].first : SizeOf(dim));
  }
  if (std::ranges::find(strides, 0) != strides.end()) Refuse("it writes an element twice");
  const StridedView exact{sizes.vec(), strides.vec(), g.Int("storage_offset")};
  BoundedView view;
  try {
    view = ViewOf(base.layout, exact, value.layout, varies, first);
    RequireSame(view.layout, value.layout);
  } catch (const SizesRefused&) {
    return WriteByIndex(g, base, exact, value);
  }
  ir::Words words = g.node().attributes();
  for (size_t d = 0; d < sizes.size(); ++d) {
    words[g.Named("size").word + d] = static_cast<uint64_t>(view.view.sizes[d]);
    words[g.Named("stride").word + d] = static_cast<uint64_t>(view.view.strides[d]);
  }
  words[g.Named("storage_offset").word] = static_cast<uint64_t>(view.view.offset);
  ir::Value written = value.value;
  if (value.varies) {
    const ir::Value old =
        tensor::MakeNode(&ir::ops::as_strided, {base.value}, ir::Words(words),
                         ir::GetShape(base.value.shape()->dtype, view.view.sizes));
    written = g.Make(ir::ops::where_self,
                     {g.Within(value.layout, Dims(value.layout.size(), true)), written, old});
  }
  g.EmitShaped({base.value, written}, std::move(words), base.layout);
}

/// Sizes that are the product of an operand's and how often it is repeated; either may vary.
void Repeat(G& g) {
  const auto repeats = g.Ints("repeats");
  const ir::ShapeRef first = g.first();
  BoundedLayout in = g.In(0).layout, layout;
  in.insert(in.begin(), repeats.size() - in.size(), BoundedDim{});
  ir::Words words = g.node().attributes();
  for (size_t d = 0; d < repeats.size(); ++d) {
    const int64_t size = SizeOf(in[d]);
    const bool fixed = !Varies(in[d]) && size > 0;
    BoundedDim times = FixedDim(repeats[d]);
    if (fixed && g.ResultVaries(0, d) && first->dims[d] % size == 0)
      times = g.MadeAs({first->dims[d] / size, repeats[d]});
    words[g.Named("repeats").word + d] = static_cast<uint64_t>(BoundOf(times));
    layout.push_back(times);
    for (const Factor& factor : in[d]) AddFactor(layout[d], factor);
  }
  g.Emit(g.Values(), std::move(words), {layout});
}

/// Views as another dtype; a number may become two, or two one.
void Bitcast(G& g) {
  BoundedLayout layout = g.In(0).layout;
  const auto& sizes = g.node().shape()->dims;
  if (sizes.size() > layout.size()) layout.push_back(FixedDim(sizes.back()));
  if (sizes.size() < layout.size()) layout.pop_back();
  if (!layout.empty() && SizeOf(layout.back()) != sizes.back()) {
    RequireFixed(layout.back(), "numbers of another width take the place of a varying size");
    layout.back() = FixedDim(sizes.back());
  }
  g.EmitShaped(g.Values(), {}, layout);
}

void ExpandNode(G& g) {
  const BoundedLayout made = g.MadeLayout(0);
  BoundedLayout layout =
      Broadcast(FixedLayout(std::vector<int64_t>(made.size(), 1)), g.In(0).layout);
  for (size_t d = 0; d < layout.size(); ++d) {
    if (layout[d].empty()) layout[d] = made[d];
  }
  g.EmitShaped(g.Values(), {}, layout);
}

/// Fills and ranges: a longer array begins with the same elements. Of several sizes each element
/// takes that of its index.
void Makes(G& g) {
  BoundedLayout layout = g.MadeLayout(0);
  if (layout.size() == 2 && &g.node().op() == &ir::ops::eye && !Same(layout[0], layout[1]) &&
      !(IsDense(layout[0]) && IsDense(layout[1])))
    Refuse("it goes along several sizes");
  if (&g.node().op() != &ir::ops::arange || IsDense(layout[0]))
    return g.EmitShaped(g.Values(), {}, layout);
  const int64_t bound = BoundOf(layout[0]);
  const ir::Value range = tensor::MakeNode(&ir::ops::arange, g.Values(), {},
                                           ir::GetShape(g.node().shape()->dtype, {bound}));
  g.Set(0, Select(g, range, 0, Places(g, layout, {1}, 0, IndexType(bound))), layout);
}

/// A random number depends on its index in the array without padding. So as many numbers are
/// drawn as the bounded array has elements, and each element takes the number of its index.
void Random(G& g) {
  const BoundedLayout layout = g.MadeLayout(0);
  for (const ir::Value& operand : g.node().operands()) {
    if (operand.shape()->rank() != 0) Refuse("its distribution has parameters of varying sizes");
  }
  if (!Varies(layout)) {
    g.EmitShaped(g.Values(), {}, layout);
    return;
  }
  int64_t bound = 1;
  for (const BoundedDim& dim : layout) bound *= BoundOf(dim);
  const c10::ScalarType dtype = g.node().shape()->dtype;
  ir::Value drawn = tensor::MakeNode(&g.node().op(), g.Values(), {}, ir::GetShape(dtype, {bound}));
  drawn.node->set_location(g.node().location());
  const BoundedDim all = AllFactors(layout);
  const bool inner_varies =
      std::any_of(all.begin() + 1, all.end(), [](const Factor& factor) { return factor.varies; });
  if (inner_varies) {
    drawn = Select(g, drawn, 0, Places(g, {all}, {1}, 0, IndexType(bound)));
  }
  g.Set(0, Contiguous(g, drawn, BoundsOf(layout)), layout);
}

}  // namespace

Table ViewRules() {
  return {
      {&Cast, {"xla::cast"}},
      {&AsStrided, {"aten::as_strided"}, true},
      {&ExpandNode, {"aten::expand"}, true},
      {&Repeat, {"aten::repeat"}, true},
      {&Bitcast, {"xla::bitcast"}},
      {&ViewUpdate, {"xla::as_strided_view_update"}},
      {&Makes, {"aten::eye", "xla::fill", "aten::arange"}, true},
      {&Random,
       {"aten::random", "aten::exponential", "aten::bernoulli", "aten::uniform", "aten::normal"},
       true},
  };
}

}  // namespace torch_xla::sizes::bounded
