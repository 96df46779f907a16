// Embeddings, and reads and writes by indices.
#include "sizes/rules_common.h"

namespace torch_xla::lazy::bounded {
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

/// Padding is masked, so that it adds 0.
void IndexAdd(G& g) {
  const Result &self = g.In(0), &index = *g.Tensor("index");
  const BoundedLayout chosen = Chosen(g, self, index);
  const Result source = Like(g, *g.Tensor("source"), chosen);
  RequireSame(source.layout, chosen);
  ir::Node::Operands operands = g.Values();
  operands[g.Named("index").operand] = PlaceOf(g, g.Masked(index, int64_t{0}), Counted(g));
  operands[g.Named("source").operand] =
      g.Masked(source, NumberOf(Neutral::kZero, source.value.shape()->dtype));
  g.Emit(std::move(operands), g.node().attributes(), {self.layout});
}

/// The dimension along which an index of the same rank counts. Along the others it may have fewer
/// elements than `self`: those at the beginning, as long as its bound is no longer.
size_t AlongIndex(G& g, Result& self, const Result& index) {
  const size_t rank = self.layout.size();
  if (rank != index.layout.size() || rank == 0) Refuse("an index of a number has no rule");
  const auto dim = static_cast<size_t>(g.Dim(g.Int("dim"), rank));
  BoundedLayout layout = index.layout;
  for (size_t d = 0; d < rank; ++d) {
    const BoundedDim &a = self.layout[d], &b = index.layout[d];
    if (d == dim || (a.size() < 2 && b.size() < 2 && BoundOf(b) <= BoundOf(a))) layout[d] = a;
  }
  self = Like(g, self, layout);
  for (size_t d = 0; d < rank; ++d) {
    const BoundedDim &a = self.layout[d], &b = index.layout[d];
    if (d == dim || Same(a, b)) continue;
    if (a.size() > 1 || b.size() > 1 || BoundOf(b) > BoundOf(a))
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

/// Indices of integers for dimensions of `self`, without padding; with `repeats` their last one
/// is in their padding, so that it is written again.
Indexed Indices(G& g, const Result& self, bool repeats = false) {
  const BoundedGraph::Argument& list = g.Named("indices");
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
    ir::Value value = index.value;
    const BoundedDim& dim = self.layout.at(d);
    if (Varies(dim)) {
      // A negative index counts from the end of the exact size, not of its bound.
      const ir::Value zero = MakeConstant(int64_t{0}, c10::ScalarType::Long, false);
      const ir::Value moved =
          Add(g, value, dim.size() == 1 ? g.SizeOfFactor(dim[0]) : Number(SizeOf(dim)));
      value =
          g.Make(ir::ops::where_self, {g.Make(ir::ops::lt_Tensor, {value, zero}), moved, value});
    }
    const Result found{value, index.layout, index.varies};
    result.indices.push_back(
        PlaceOf(g, repeats ? Repeated(g, found) : g.Masked(found, int64_t{0}), dim));
  }
  result.layout.assign(self.layout.begin(),
                       self.layout.begin() + static_cast<std::ptrdiff_t>(before));
  result.layout.insert(result.layout.end(), result.chosen.begin(), result.chosen.end());
  for (size_t d = last + 1; d < self.layout.size(); ++d) result.layout.push_back(self.layout[d]);
  return result;
}

Dims Others(Dims dims) {
  dims.flip();
  return dims;
}

/// Writes along a dimension: padding writes the last elements again.
void IndexWrite(G& g) {
  const Result &self = g.In(0), &index = *g.Tensor("index");
  const BoundedLayout chosen = Chosen(g, self, index);
  ir::Node::Operands operands = g.Values();
  operands[g.Named("index").operand] = PlaceOf(g, Repeated(g, index), Counted(g));
  if (const Result* source = g.Has("source") ? g.Tensor("source") : nullptr) {
    RequireSame(source->layout, chosen);
    const auto dim = g.Dim(g.Int("dim"), self.layout.size());
    operands[g.Named("source").operand] = Repeated(g, *source, Only(self.layout.size(), dim));
  }
  g.Emit(std::move(operands), g.node().attributes(), {self.layout});
}

/// Padding of an index adds 0, or writes what is there: the last elements again along `dim`, the
/// elements of `self` elsewhere.
template <bool adds>
void Scatter(G& g) {
  if (g.Has("reduce")) Refuse("it has no rule with a reduction");
  const size_t at = g.Named("index").operand;
  Result self = g.In(0);
  const Result& index = g.In(at);
  const size_t dim = AlongIndex(g, self, index);
  ir::Node::Operands operands = g.Values();
  operands[0] = self.value;
  const Dims along = Only(index.layout.size(), static_cast<int64_t>(dim));
  operands[at] = adds ? index.value : Repeated(g, index, along);
  operands[at] = g.Masked({operands[at], index.layout, index.varies}, int64_t{0},
                          adds ? Dims(along.size(), true) : Others(along));
  operands[at] = PlaceOf(g, operands[at], self.layout[dim]);
  // Padding along another dimension may lie where `self` has elements that count.
  Dims within(along.size());
  for (size_t d = 0; d < within.size(); ++d)
    within[d] = d != dim && !Same(self.layout[d], index.layout[d]);
  if (const Result* source = g.Has("src") ? g.Tensor("src") : nullptr) {
    const Result like = Like(g, *source, index.layout);
    RequireSame(like.layout, index.layout);
    ir::Value& given = operands[g.Named("src").operand];
    given = adds ? g.Masked(like, NumberOf(Neutral::kZero, given.shape()->dtype))
                 : Repeated(g, like, along);
    if (!adds && AnyVaries(index.layout, within)) {
      ir::Words words;
      ir::AttributeWriter writer(words);
      writer.Int(static_cast<int64_t>(dim));
      writer.Int(0);  // sparse_grad
      const ir::Value old = g.Make(ir::ops::gather, {self.value, operands[at]}, std::move(words));
      given = g.Where({given, index.layout, true}, old, within);
    }
  } else if (adds || AnyVaries(index.layout, within)) {
    Refuse("what its padding writes has no rule");
  }
  g.Emit(std::move(operands), g.node().attributes(), {self.layout});
}

void Index(G& g) {
  Indexed found = Indices(g, g.In(0));
  found.indices.insert(found.indices.begin(), g.In(0).value);
  g.Emit(std::move(found.indices), g.node().attributes(), {found.layout});
}

/// Padding adds 0, or writes the last elements again.
void IndexPut(G& g) {
  const bool adds = g.Int("accumulate") != 0;
  const Result &self = g.In(0), &values = *g.Tensor("values");
  Indexed found = Indices(g, self, !adds);
  const c10::Scalar zero = NumberOf(Neutral::kZero, self.value.shape()->dtype);
  if (values.layout.size() != 0) RequireSame(values.layout, found.layout);
  if (adds && values.layout.empty() && Varies(found.chosen)) Refuse("its values are broadcast");
  found.indices.insert(found.indices.begin(), self.value);
  found.indices.push_back(adds ? g.Masked(values, zero) : Repeated(g, values));
  g.Emit(std::move(found.indices), g.node().attributes(), {self.layout});
}

}  // namespace

Table IndexRules() {
  return {
      {&Embedding, {"aten::embedding"}},
      {&EmbeddingBackward, {"aten::embedding_dense_backward"}},
      {&IndexSelect, {"aten::index_select"}},
      {&IndexAdd, {"aten::index_add"}},
      {&IndexWrite, {"aten::index_copy", "aten::index_fill"}},
      {&Gather, {"aten::gather"}},
      {&Index, {"aten::index"}},
      {&IndexPut, {"aten::index_put"}},
      {&Scatter<false>, {"aten::scatter"}},
      {&Scatter<true>, {"aten::scatter_add"}},
  };
}

}  // namespace torch_xla::lazy::bounded
