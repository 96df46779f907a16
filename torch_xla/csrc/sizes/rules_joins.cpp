// Concatenation, padding with a number, and the gradients of parts.
#include <algorithm>

#include "sizes/rules_common.h"

namespace torch_xla::sizes::bounded {
namespace {

void Pad(G& g) {
  const Result& in = g.In(0);
  BoundedLayout layout = in.layout;
  const auto pad = g.Ints("pad");
  Dims dims(layout.size());
  for (size_t i = 0; i < pad.size(); i += 2) {
    if (pad[i] == 0 && pad[i + 1] == 0) continue;
    const size_t d = layout.size() - 1 - i / 2;
    dims[d] = pad[i + 1] > 0;
    layout[d] = Varies(layout[d]) ? Longer(g, layout[d], d, pad[i] + pad[i + 1])
                                  : FixedDim(SizeOf(layout[d]) + pad[i] + pad[i + 1]);
  }
  const ir::Value value = g.In(1).value;
  g.Emit({g.Where(in, tensor::Cast(value, in.value.shape()->dtype), dims), value},
         g.node().attributes(), {layout});
}

/// The gradient of x[…, index, …] and of a slice.
void PartBackward(G& g) {
  const bool slices = g.Has("start");
  const BoundedLayout made = g.MadeLayout(0);
  const auto dim = static_cast<size_t>(g.Dim(g.Int("dim"), made.size()));
  // A part of a size may itself be of several sizes.
  const Result grad = slices ? Compact(g, g.In(0), dim) : g.In(0);
  ir::Words words = g.node().attributes();
  for (size_t d = 0; d < made.size(); ++d)
    words[g.Named("input_sizes").word + d] = static_cast<uint64_t>(BoundOf(made[d]));
  for (size_t d = 0; d < made.size(); ++d) {
    if (d == dim) continue;
    const BoundedDim& given = grad.layout.at(slices || d < dim ? d : d - 1);
    if (!Same(given, made[d])) Refuse("its gradient has another varying size");
  }
  const int64_t size = SizeOf(made[dim]);
  if (made[dim].size() > 1) Refuse("it takes apart several sizes");
  if (!slices) {
    const int64_t index = g.Int("index");
    if (!Varies(made[dim])) {
      g.Emit(g.Values(), std::move(words), {made});
      return;
    }
    // The index is a parameter of the program, since it may differ from size to size.
    std::vector<int64_t> sizes(made.size(), 1), ones(made.size(), 1);
    sizes[dim] = BoundOf(made[dim]);
    const ir::Value place = Number(index < 0 ? index + size : index);
    const ir::Value is_there =
        g.View(g.Make(ir::ops::eq_Tensor, {g.Iota(sizes[dim]), place}), sizes, ones);
    std::vector<int64_t> bounds = BoundsOf(made);
    const std::vector<int64_t> whole = bounds;
    bounds[dim] = 1;
    g.Set(0,
          tensor::Expand(g.Make(ir::ops::where_self,
                                {is_there, Contiguous(g, grad.value, bounds),
                                 tensor::MakeConstant(0.0, grad.value.shape()->dtype, false)}),
                         whole),
          made);
    return;
  }
  if (g.Int("step") != 1) Refuse("a slice with steps has no rule");
  int64_t start = g.Int("start");
  if (start < 0) start += size;
  start = std::clamp<int64_t>(start, 0, size);
  const int64_t bound = BoundOf(grad.layout[dim]);
  if (start + bound > BoundOf(made[dim])) Refuse("its gradient has another varying size");
  words[g.Named("start").word] = static_cast<uint64_t>(start);
  words[g.Named("end").word] = static_cast<uint64_t>(start + bound);
  // The gradient's padding may fall on valid elements of the result, so it must be 0.
  g.Emit({g.Masked(grad, 0.0, Only(grad.layout.size(), static_cast<int64_t>(dim)))},
         std::move(words), {made});
}

/// Padding of the gradient belongs to padding of the array.
void DiagonalBackward(G& g) {
  const BoundedLayout made = g.MadeLayout(0), &grad = g.In(0).layout;
  const auto row = static_cast<size_t>(g.Dim(g.Int("dim1"), made.size()));
  const auto column = static_cast<size_t>(g.Dim(g.Int("dim2"), made.size()));
  if (made[row].size() > 1 || made[column].size() > 1 || grad.back().size() > 1)
    Refuse("it goes along several sizes");
  const int64_t offset = g.Int("offset");
  const int64_t length = std::min(BoundOf(made[row]) + std::min<int64_t>(offset, 0),
                                  BoundOf(made[column]) - std::max<int64_t>(offset, 0));
  BoundedLayout others;
  for (size_t d = 0; d < made.size(); ++d) {
    if (d != row && d != column) others.push_back(made[d]);
  }
  RequireSame({grad.begin(), grad.end() - 1}, others);
  if (BoundOf(grad.back()) != length) Refuse("its gradient has another varying size");
  ir::Words words = g.node().attributes();
  for (size_t d = 0; d < made.size(); ++d)
    words[g.Named("input_sizes").word + d] = static_cast<uint64_t>(BoundOf(made[d]));
  g.Emit(g.Values(), std::move(words), {made});
}

/// The operands of a concatenation without empty 1-D tensors, which fit tensors of any rank.
std::vector<size_t> Parts(const G& g) {
  std::vector<size_t> parts;
  for (size_t i = 0; i < g.node().operands().size(); ++i) {
    const BoundedLayout& in = g.In(i).layout;
    if (in.size() != 1 || SizeOf(in[0]) != 0 || g.node().shape()->rank() == 1) parts.push_back(i);
  }
  return parts;
}

/// Concatenates arrays of different varying sizes, such as a cache and its newest tokens: each
/// element moves forward by the padding of the arrays before it.
void Behind(G& g, size_t dim, BoundedLayout layout) {
  if (!g.ResultVaries(0, dim)) Refuse("arrays of varying sizes are put behind each other");
  int64_t bounds = 0;
  ir::Node::Operands parts = g.Values();
  for (size_t i : Parts(g)) {
    parts[i] = Compact(g, g.In(i), dim).value;
    bounds += BoundOf(g.In(i).layout[dim]);
  }
  BoundedDim made = g.Made(0, dim);
  if (!Varies(made)) {
    const int64_t size = g.node().shape()->dims[dim];
    made = {{size, bounds, g.first()->dims[dim], true}};
  }
  if (made.size() > 1) Refuse("arrays of several sizes are put behind each other");
  layout[dim] = made;
  const ir::Value place = g.Iota(BoundOf(made));
  ir::Value index = place;
  int64_t size = 0, bound = 0;
  for (size_t i : Parts(g)) {
    const BoundedDim& in = g.In(i).layout[dim];
    if (bound > 0) {
      const ir::Value moved = Add(g, place, Number(bound - size));
      index = g.Make(ir::ops::where_self,
                     {g.Make(ir::ops::lt_Tensor, {place, Number(size)}), index, moved});
    }
    size += SizeOf(in), bound += BoundOf(in);
  }
  const ir::Value last = tensor::MakeConstant(bounds - 1, c10::ScalarType::Long, false);
  index = g.Make(ir::ops::minimum, {index, last});
  const ir::Value all = g.Make(ir::ops::cat, std::move(parts), g.node().attributes());
  g.Set(0, Select(g, all, dim, index), layout);
}

void Concatenate(G& g) {
  const std::vector<size_t> parts = Parts(g);
  BoundedLayout layout = g.In(parts.at(0)).layout;
  const auto dim = static_cast<size_t>(g.Dim(g.Int("dim"), layout.size()));
  const BoundedDim one = layout.at(dim);
  int64_t size = 0;
  bool equal = true, varies = false;
  for (size_t i : parts) {
    const BoundedLayout& in = g.In(i).layout;
    if (in.size() != layout.size()) Refuse("it has an operand of another rank");
    for (size_t d = 0; d < in.size(); ++d) {
      if (d != dim && !Same(in[d], layout[d]))
        Refuse("its operands have different sizes that vary");
    }
    varies |= Varies(in[dim]);
    equal &= Same(in[dim], one);
    size += SizeOf(in[dim]);
  }
  if (varies && !equal) return Behind(g, dim, std::move(layout));
  layout[dim] = FixedDim(varies ? static_cast<int64_t>(parts.size()) : size);
  if (varies) {
    for (const Factor& factor : one) AddFactor(layout[dim], factor);
  }
  g.Emit(g.Values(), g.node().attributes(), {layout});
}

}  // namespace

Table JoinRules() {
  return {
      {&Pad, {"aten::constant_pad_nd"}},
      {&PartBackward, {"aten::select_backward", "aten::slice_backward"}, true},
      {&DiagonalBackward, {"aten::diagonal_backward"}, true},
      {&Concatenate, {"aten::cat"}},
  };
}

}  // namespace torch_xla::sizes::bounded
