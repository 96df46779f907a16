// Embeddings, and reads and writes by indices.
#include <algorithm>

#include "sizes/rules_common.h"

namespace torch_xla::sizes::bounded {
namespace {

void Embedding(G& g) {
  RequireFixed(g.In(0).layout, "the table's size varies");
  BoundedLayout layout = g.In(1).layout;
  layout.push_back(g.In(0).layout.at(1));
  g.Emit({g.In(0).value, g.Masked(g.In(1), int64_t{0})}, g.node().attributes(), {layout});
}

void EmbeddingBackward(G& g) {
  if (g.Int("scale_grad_by_freq") != 0) Refuse("it counts how often an index comes");
  const BoundedLayout& grad = g.In(0).layout;
  RequireFixed(grad.back(), "the table's size varies");
  const Result index = Like(g, g.In(1), {grad.begin(), grad.end() - 1});
  RequireSame({grad.begin(), grad.end() - 1}, index.layout);
  g.Emit({g.Masked(g.In(0), 0.0), g.Masked(index, int64_t{0})}, g.node().attributes(),
         {{FixedDim(g.Int("num_weights")), grad.back()}});
}

/// The layout of the elements of `self` that an index along the argument `dim` chooses.
BoundedLayout Chosen(G& g, const Result& self, const Result& index) {
  if (self.layout.empty() || index.layout.size() != 1) Refuse("it has another rank");
  const auto dim = static_cast<size_t>(g.Dim(g.Int("dim"), self.layout.size()));
  BoundedLayout layout = self.layout;
  layout[dim] = index.layout[0];
  return layout;
}

/// The dimension of the node's first operand along which its index counts.
const BoundedDim& Counted(G& g) {
  const BoundedLayout& layout = g.In(0).layout;
  return layout.at(static_cast<size_t>(g.Dim(g.Int("dim"), layout.size())));
}

void IndexSelect(G& g) {
  const BoundedLayout chosen = Chosen(g, g.In(0), g.In(1));
  g.Emit({g.In(0).value, PlaceOf(g, g.Masked(g.In(1), int64_t{0}), Counted(g))},
         g.node().attributes(), {chosen});
}

/// An index along `dim`; a negative one counts from the end of the exact size, not of its bound.
Result FromStart(G& g, const Result& index, const BoundedDim& dim) {
  if (!Varies(dim)) return index;
  const c10::ScalarType dtype = index.value.shape()->dtype;
  const ir::Value size =
      dim.size() == 1 ? tensor::Cast(g.SizeOfFactor(dim[0]), dtype) : Number(SizeOf(dim), dtype);
  const ir::Value is_negative =
      g.Make(ir::ops::lt_Tensor, {index.value, tensor::MakeConstant(int64_t{0}, dtype, false)});
  return {g.Make(ir::ops::where_self, {is_negative, Add(g, index.value, size), index.value}),
          index.layout, index.varies};
}

/// Where an index along `dim` writes: that of padding is out of bounds, so it writes nothing.
ir::Value Written(G& g, const Result& index, const BoundedDim& dim) {
  const c10::ScalarType dtype = index.value.shape()->dtype;
  return g.Where({PlaceOf(g, index.value, dim), index.layout, index.varies},
                 tensor::MakeConstant(BoundOf(dim), dtype, false), Dims(index.layout.size(), true));
}

/// Writes, adds or reduces along a dimension.
void IndexWrite(G& g) {
  const Result &self = g.In(0), &index = *g.Tensor("index");
  const BoundedLayout chosen = Chosen(g, self, index);
  ir::Node::Operands operands = g.Values();
  operands[g.Named("index").operand] = Written(g, index, Counted(g));
  if (const Result* source = g.Has("source") ? g.Tensor("source") : nullptr) {
    const Result like = Like(g, *source, chosen);
    RequireSame(like.layout, chosen);
    operands[g.Named("source").operand] = like.value;
  }
  g.Emit(std::move(operands), g.node().attributes(), {self.layout});
}

/// Whether the elements along `part` are the first ones along `whole`, padding among them.
bool Begins(const BoundedDim& whole, const BoundedDim& part) {
  return Same(whole, part) ||
         (whole.size() < 2 && part.size() < 2 && BoundOf(part) <= BoundOf(whole));
}

/// The dimension along which an index of the same rank counts. Along the others it may have fewer
/// elements than `self`.
size_t AlongIndex(G& g, Result& self, const Result& index) {
  const size_t rank = self.layout.size();
  if (rank != index.layout.size() || rank == 0) Refuse("an index of a number has no rule");
  const auto dim = static_cast<size_t>(g.Dim(g.Int("dim"), rank));
  BoundedLayout layout = index.layout;
  for (size_t d = 0; d < rank; ++d) {
    if (d == dim || Begins(self.layout[d], layout[d])) layout[d] = self.layout[d];
  }
  self = Like(g, self, layout);
  for (size_t d = 0; d < rank; ++d) {
    if (d != dim && !Begins(self.layout[d], index.layout[d]))
      Refuse("its operands have different sizes that vary");
  }
  return dim;
}

void Gather(G& g) {
  Result self = g.In(0);
  const Result& index = g.In(1);
  const BoundedDim& along = self.layout.at(AlongIndex(g, self, index));
  g.Emit({self.value, PlaceOf(g, g.Masked(index, int64_t{0}), along)}, g.node().attributes(),
         {index.layout});
}

struct Indexed {
  ir::Node::Operands indices;
  BoundedLayout chosen;  // of the indices
  BoundedLayout layout;  // of what they select
};

/// Indices of integers for dimensions of `self`; those of padding are 0, or write nothing.
Indexed Indices(G& g, const Result& self, bool writes = false) {
  const Argument& list = g.Named("indices");
  Indexed result;
  if (list.operands == 0) Refuse("it has no index");
  for (size_t i = 0; i < list.operands; ++i)
    result.chosen = Broadcast(result.chosen, g.In(1 + i).layout);
  size_t before = 0, last = 0;  // dimensions before the indices; the last one that has an index
  for (size_t d = 0, i = 0; d < list.present.size(); ++d) {
    if (!list.present[d]) {
      before += i == 0;
      continue;
    }
    const Result& index = g.In(1 + i++);
    if (index.value.shape()->dtype != c10::ScalarType::Long)
      Refuse("only int64 indices have a rule");
    if (d != before + i - 1) Refuse("indices of dimensions that lie apart have no rule");
    last = d;
    const BoundedDim& dim = self.layout.at(d);
    const Result found = FromStart(g, index, dim);
    result.indices.push_back(writes ? Written(g, found, dim)
                                    : PlaceOf(g, g.Masked(found, int64_t{0}), dim));
  }
  result.layout.assign(self.layout.begin(),
                       self.layout.begin() + static_cast<std::ptrdiff_t>(before));
  result.layout.insert(result.layout.end(), result.chosen.begin(), result.chosen.end());
  for (size_t d = last + 1; d < self.layout.size(); ++d) result.layout.push_back(self.layout[d]);
  return result;
}

/// Padding writes nothing.
void Scatter(G& g) {
  const size_t at = g.Named("index").operand;
  Result self = g.In(0);
  const Result& index = g.In(at);
  const size_t dim = AlongIndex(g, self, index);
  ir::Node::Operands operands = g.Values();
  operands[0] = self.value;
  operands[at] = Written(g, index, self.layout[dim]);
  if (const Result* source = g.Has("src") ? g.Tensor("src") : nullptr) {
    const Result like = Like(g, *source, index.layout);
    if (!std::ranges::equal(like.layout, index.layout, Begins))
      Refuse("its operands have different sizes that vary");
    operands[g.Named("src").operand] = like.value;
  }
  g.Emit(std::move(operands), g.node().attributes(), {self.layout});
}

void Index(G& g) {
  Indexed found = Indices(g, g.In(0));
  found.indices.insert(found.indices.begin(), g.In(0).value);
  g.Emit(std::move(found.indices), g.node().attributes(), {found.layout});
}

void IndexPut(G& g) {
  const Result &self = g.In(0), &values = *g.Tensor("values");
  Indexed found = Indices(g, self, /*writes=*/true);
  const Result like = Like(g, values, found.layout);
  RequireSame(Broadcast(found.layout, like.layout), found.layout);
  found.indices.insert(found.indices.begin(), self.value);
  found.indices.push_back(like.value);
  g.Emit(std::move(found.indices), g.node().attributes(), {self.layout});
}

/// An index into all elements.
template <bool writes>
void Place(G& g) {
  const Result &self = g.In(0), &index = *g.Tensor("index");
  const BoundedDim all = AllFactors(self.layout);
  const Result found = FromStart(g, index, all);
  ir::Node::Operands operands = g.Values();
  operands[1] = writes ? Written(g, found, all) : PlaceOf(g, g.Masked(found, int64_t{0}), all);
  if (writes) {
    const Result source = Like(g, *g.Tensor("source"), index.layout);
    RequireSame(source.layout, index.layout);
    operands[2] = source.value;
  }
  g.Emit(std::move(operands), g.node().attributes(), {writes ? self.layout : index.layout});
}

/// Padding is not found. If no input has the number of elements that are found, it is bounded by
/// that of all elements.
void Found(G& g) {
  const Result& in = g.In(0);
  int64_t all = 1;
  for (const BoundedDim& dim : in.layout) {
    if (Varies(dim) && dim.size() > 1) Refuse("it goes along several sizes");
    all *= BoundOf(dim);
  }
  BoundedLayout layout = g.MadeLayout(0);
  const int64_t size = g.Int("size");
  if (g.ResultVaries(0, 0) && !Varies(layout[0]) && size > 1)
    layout[0] = {{size, std::max(size, all), g.first()->dims[0], true}};
  ir::Words words = g.node().attributes();
  words[g.Named("size").word] = static_cast<uint64_t>(BoundOf(layout[0]));
  g.Emit({g.Masked(in, NumberOf(Neutral::kZero, in.value.shape()->dtype))}, std::move(words),
         {layout});
}

ir::Value Filled(G& g, const Result& index, int64_t by) {
  return g.Where(index, tensor::MakeConstant(by, index.value.shape()->dtype, false),
                 Dims(index.layout.size(), true));
}

/// Bags of rows of a table. Padding of bags begins at the end, and has no elements.
void EmbeddingBag(G& g) {
  const Result& weight = *g.Tensor("weight");
  RequireFixed(weight.layout, "the table's size varies");
  const Result given = *g.Tensor("indices"), indices = Compact(g, given, 0);
  const Result offsets = Compact(g, *g.Tensor("offsets"), 0);
  const bool has_end = g.Int("include_last_offset") != 0;
  // An index that is left out makes padding no element of a bag.
  const int64_t padding = g.Int("padding_idx");
  const int64_t left_out = padding < 0 ? SizeOf(weight.layout[0]) : padding;
  ir::Node::Operands operands = g.Values();
  ir::Words words = g.node().attributes();
  words[g.Named("padding_idx").word] = static_cast<uint64_t>(left_out);
  operands[g.Named("indices").operand] = Filled(g, indices, left_out);
  if (const Result* scale = g.Tensor("per_sample_weights")) {
    RequireSame(scale->layout, given.layout);
    operands[g.Named("per_sample_weights").operand] = Compact(g, *scale, 0).value;
  }
  BoundedDim places = offsets.layout[0], bags = places;
  ir::Value begins = offsets.value;
  if (has_end && Varies(places)) {
    bags = g.Made(0, 0);
    if (bags.size() != 1 || !Varies(bags)) bags = Longer(g, places, 0, -1);
    // The last offset is the end.
    places = Longer(g, bags, 0, 1);
    begins =
        Select(g, begins, 0,
               g.Make(ir::ops::minimum, {g.Iota(BoundOf(places)), Number(SizeOf(places) - 1)}));
  } else if (has_end) {
    bags = FixedDim(SizeOf(places) - 1);
  } else if (&begins.node->op() != &ir::ops::arange ||
             BoundOf(indices.layout[0]) * SizeOf(bags) !=
                 SizeOf(indices.layout[0]) * BoundOf(bags)) {
    const ir::Value end = Number(SizeOf(indices.layout[0]), begins.shape()->dtype);
    begins = g.Where({begins, offsets.layout, true}, end, {true});
  }
  operands[g.Named("offsets").operand] = begins;
  std::vector<BoundedLayout> layouts{{bags, weight.layout[1]}, indices.layout};
  for (size_t i = 2; i < 4; ++i) {
    const ir::ShapeRef shape = g.node().shape(i);
    if (!shape || shape->numel == 0) {
      layouts.push_back(shape ? FixedLayout(shape->dims) : BoundedLayout{});
    } else if (shape->rank() == 2) {
      layouts.push_back(layouts[0]);
    } else {
      layouts.push_back({shape->dims[0] == SizeOf(bags) ? bags : places});
    }
  }
  g.Emit(std::move(operands), std::move(words), layouts);
}

void EmbeddingBagBackward(G& g) {
  const Result given = *g.Tensor("indices"), indices = Compact(g, given, 0);
  const Result of = Compact(g, *g.Tensor("offset2bag"), 0);
  RequireSame(of.layout, indices.layout);
  const Result& grad = *g.Tensor("grad");
  RequireFixed(grad.layout[1], "the table's size varies");
  ir::Node::Operands operands = g.Values();
  operands[g.Named("offset2bag").operand] = Filled(g, of, 0);
  const size_t at = g.Named("indices").operand;
  if (!g.Has("num_weights")) {
    operands[at] = Filled(g, indices, 0);
    const ir::Value made = g.Make(g.node().op(), std::move(operands), g.node().attributes());
    g.Set(0, Spread(g, made, 0, given.layout[0]), given.layout);
    return;
  }
  const int64_t num_weights = g.Int("num_weights");
  operands[at] = Filled(g, indices, num_weights);
  if (const Result* scale = g.Tensor("per_sample_weights")) {
    RequireSame(scale->layout, given.layout);
    operands[g.Named("per_sample_weights").operand] = Compact(g, *scale, 0).value;
  }
  const Result& best = *g.Tensor("maximum_indices");
  if (best.layout.size() == 2) {
    RequireSame(best.layout, grad.layout);
    operands[g.Named("maximum_indices").operand] = Filled(g, best, -1);
  }
  if (!Begins(g.Tensor("bag_size")->layout.at(0), grad.layout[0]))
    Refuse("its operands have different sizes that vary");
  g.Emit(std::move(operands), g.node().attributes(), {{FixedDim(num_weights), grad.layout[1]}});
}

}  // namespace

Table IndexRules() {
  return {
      {&Embedding, {"aten::embedding"}},
      {&EmbeddingBackward, {"aten::embedding_dense_backward"}},
      {&IndexSelect, {"aten::index_select"}},
      {&IndexWrite,
       {"aten::index_add", "aten::index_copy", "aten::index_fill", "aten::index_reduce"}},
      {&Gather, {"aten::gather"}},
      {&Index, {"aten::index"}},
      {&IndexPut, {"aten::index_put"}},
      {&Found, {"aten::nonzero_static"}, true},
      {&Place<false>, {"aten::take"}},
      {&Place<true>, {"aten::put"}},
      {&EmbeddingBag, {"aten::_embedding_bag", "aten::_embedding_bag_forward_only"}},
      {&EmbeddingBagBackward,
       {"aten::_embedding_bag_dense_backward", "aten::_embedding_bag_per_sample_weights_backward"}},
      {&Scatter, {"aten::scatter", "aten::scatter_add", "aten::scatter_reduce"}},
  };
}

}  // namespace torch_xla::sizes::bounded
