// Operations that depend on the order of elements: cumulative ones, sorting, flips, triangles.
#include <limits>

#include "sizes/rules_common.h"

namespace torch_xla::sizes::bounded {
namespace {

/// Each element depends only on elements before it, and padding lies at the end.
template <Neutral neutral>
void Cumulative(G& g) {
  const Result& in = g.In(0);
  if (in.layout.empty()) Refuse("it has no dimension");
  const auto dim = static_cast<size_t>(g.Dim(g.Int("dim"), in.layout.size()));
  EmitCompact(g, dim, NumberOf(neutral, in.value.shape()->dtype));
}

/// Padding sorts behind the elements that count, which come first among equal ones.
void Sorted(G& g) {
  const Result& in = g.In(0);
  const BoundedLayout layout = in.layout;
  const auto dim = static_cast<size_t>(g.Dim(g.Int("dim"), layout.size()));
  if (layout.empty() || !Varies(layout[dim])) return Along(g);
  const c10::ScalarType dtype = in.value.shape()->dtype;
  const bool is_least = g.Int("descending") != 0;
  const c10::Scalar last = !is_least && c10::isFloatingType(dtype)
                               ? c10::Scalar(std::numeric_limits<double>::quiet_NaN())
                               : NumberOf(is_least ? Neutral::kLeast : Neutral::kMost, dtype);
  EmitCompact(g, dim, last);
}

/// Padding lies outside of the bins.
void Histogram(G& g) {
  const Result& in = g.In(0);
  ir::AttributeReader reader(g.node().attributes());
  reader.Int();
  const double least = reader.Scalar().toDouble(), most = reader.Scalar().toDouble();
  if (least == most || !c10::isFloatingType(in.value.shape()->dtype))
    Refuse("its bins depend on its elements");
  g.Emit({g.Masked(in, std::numeric_limits<double>::infinity())}, g.node().attributes(),
         {FixedLayout(g.node().shape()->dims)});
}

/// The boundaries' padding lies above all numbers; an infinite one is counted again.
void Bucketize(G& g) {
  const size_t at = g.Named(g.Has("boundaries") ? "boundaries" : "sorted_sequence").operand;
  const Result &boundaries = g.In(at), &self = g.In(g.Named("self").operand);
  const BoundedLayout& in = boundaries.layout;
  if (in.size() > 1)
    RequireSame({in.begin(), in.end() - 1}, {self.layout.begin(), self.layout.end() - 1});
  if (!Varies(in.back())) return g.Emit(g.Values(), g.node().attributes(), {self.layout});
  if (g.Has("sorter") && g.Tensor("sorter")) Refuse("a sorter has no rule");
  ir::Node::Operands operands = g.Values();
  operands[at] = g.Masked(Compact(g, boundaries, in.size() - 1),
                          NumberOf(Neutral::kMost, boundaries.value.shape()->dtype),
                          Only(in.size(), static_cast<int64_t>(in.size()) - 1));
  const ir::Value count = g.Make(g.node().op(), std::move(operands), g.node().attributes());
  g.Set(0, g.Make(ir::ops::minimum, {count, Number(SizeOf(in.back()), g.node().shape()->dtype)}),
        self.layout);
}

/// Flips and rolls: an index of each element, with the size as a number of the program.
void Moved(G& g) {
  const Result& in = g.In(0);
  const bool rolls = g.Has("shifts");
  const auto dims = g.Ints("dims"), shifts = rolls ? g.Ints("shifts") : c10::IntArrayRef{};
  if (dims.empty()) return Along(g);
  ir::Value value = in.value;
  for (size_t i = 0; i < dims.size(); ++i) {
    const auto dim = static_cast<size_t>(g.Dim(dims[i], in.layout.size()));
    const BoundedDim& along = in.layout.at(dim);
    if (!Varies(along)) {
      ir::Words words;
      ir::AttributeWriter writer(words);
      if (rolls) writer.IntList({shifts[i]});
      writer.IntList({dims[i]});
      value = g.Make(g.node().op(), {value}, std::move(words));
      continue;
    }
    const ir::Value iota = g.Iota(BoundOf(along)), one = tensor::MakeScalar(int64_t{1});
    const ir::Value place =
        rolls ? g.Make(ir::ops::remainder_Tensor,
                       {g.Make(ir::ops::sub_Tensor, {iota, Number(shifts[i]), one}),
                        Number(SizeOf(along))})
              : g.Make(ir::ops::maximum,
                       {g.Make(ir::ops::sub_Tensor, {Number(SizeOf(along) - 1), iota, one}),
                        tensor::MakeConstant(int64_t{0}, c10::ScalarType::Long, false)});
    const Result whole = Compact(g, {value, in.layout, true}, dim);
    value = Spread(g, Select(g, whole.value, dim, place), dim, along);
  }
  g.Set(0, value, in.layout);
}

/// The last two dimensions must each be one factor, so that indices along them stay valid.
void Triangle(G& g) {
  const BoundedLayout& in = g.In(0).layout;
  if (in.size() < 2 || in[in.size() - 1].size() > 1 || in[in.size() - 2].size() > 1)
    Refuse("it goes along several sizes");
  g.Emit(g.Values(), g.node().attributes(), {in});
}

}  // namespace

Table OrderRules() {
  return {
      {&Cumulative<Neutral::kZero>, {"aten::cumsum"}},
      {&Cumulative<Neutral::kOne>, {"aten::cumprod"}},
      {&Cumulative<Neutral::kLeast>, {"aten::cummax", "aten::logcumsumexp"}},
      {&Cumulative<Neutral::kMost>, {"aten::cummin"}},
      {&Sorted, {"aten::sort"}},
      {&Histogram, {"aten::histc"}},
      {&Along, {"aten::glu", "aten::glu_backward", "aten::_fft_c2r"}},
      {&Exactly<Along>,
       {"aten::topk", "aten::kthvalue", "aten::median", "aten::nanmedian", "aten::mode",
        "aten::_fft_c2c", "aten::_fft_r2c"}},
      {&Moved, {"aten::roll", "aten::flip"}},
      {&Bucketize, {"aten::bucketize", "aten::searchsorted"}},
      {&Triangle, {"aten::tril", "aten::triu"}},
  };
}

}  // namespace torch_xla::sizes::bounded
