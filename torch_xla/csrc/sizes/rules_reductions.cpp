// Reductions over dimensions, and softmax.
#include <algorithm>
#include <limits>

#include "sizes/rules_common.h"

namespace torch_xla::sizes::bounded {
namespace {

Dims ReducedDims(const G& g, size_t rank) {
  if (!g.Has("dim") || !g.Named("dim").given) return Dims(rank, true);
  const auto list = g.Ints("dim");
  if (list.empty()) return Dims(rank, true);
  Dims dims(rank);
  if (rank == 0) return dims;
  for (int64_t dim : list) dims.at(static_cast<size_t>(g.Dim(dim, rank))) = true;
  return dims;
}

template <Neutral neutral, bool places = false>
void Reduce(G& g) {
  Result in = g.In(0);
  const Dims dims = ReducedDims(g, in.layout.size());
  ir::Node::Operands operands = g.Values();
  if (AnyVaries(in.layout, dims)) {
    if (neutral == Neutral::kNone) Refuse("it has no rule along a varying size");
    if (places && g.Has("dim")) {
      // An index must not count padding.
      if (std::count(dims.begin(), dims.end(), true) != 1)
        Refuse("its index counts elements of a varying size");
      in = Compact(g, in, static_cast<size_t>(std::ranges::find(dims, true) - dims.begin()));
    }
    operands[0] = g.Masked(in, NumberOf(neutral, in.value.shape()->dtype), dims);
  }
  const BoundedLayout layout = Reduced(g, in.layout, dims);
  g.Emit(std::move(operands), g.node().attributes(),
         std::vector<BoundedLayout>(g.node().num_outputs(), layout));
}

void LeastAndMost(G& g) {
  const Result& in = g.In(0);
  const Dims dims = ReducedDims(g, in.layout.size());
  const BoundedLayout layout = Reduced(g, in.layout, dims);
  ir::Words words;
  ir::AttributeWriter writer(words);
  std::vector<int64_t> list;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d]) list.push_back(static_cast<int64_t>(d));
  }
  writer.IntList(list);
  writer.Int(g.Int("keepdim"));
  const c10::ScalarType dtype = in.value.shape()->dtype;
  g.Set(0, g.Make(ir::ops::amin, {g.Masked(in, NumberOf(Neutral::kMost, dtype), dims)}, words),
        layout);
  g.Set(1, g.Make(ir::ops::amax, {g.Masked(in, NumberOf(Neutral::kLeast, dtype), dims)}, words),
        layout);
}

/// A sum that is divided by the number of elements, which is a parameter of the program.
void Mean(G& g) {
  const Result& in = g.In(0);
  const Dims dims = ReducedDims(g, in.layout.size());
  const BoundedLayout layout = Reduced(g, in.layout, dims);
  if (!AnyVaries(in.layout, dims)) {
    g.Emit(g.Values(), g.node().attributes(), {layout});
    return;
  }
  const c10::ScalarType dtype = g.node().shape()->dtype;
  ir::Value masked = g.Masked(in, NumberOf(Neutral::kZero, in.value.shape()->dtype), dims);
  masked = tensor::Cast(masked, IsHalf(dtype) ? c10::ScalarType::Float : dtype);
  const ir::OpSpec& sum = g.Has("dim") ? ir::ops::sum_dim_IntList : ir::ops::sum;
  ir::Value mean = g.Make(ir::ops::div_Tensor,
                          {g.Make(sum, {masked}, g.node().attributes()), g.Count(in.layout, dims)});
  g.Set(0, tensor::Cast(mean, dtype), layout);
}

/// Norms; with a negative exponent an infinite element adds 0.
void Norm(G& g) {
  ir::AttributeReader reader(g.node().attributes());
  const c10::Scalar exponent = reader.Scalar();
  if (exponent.toDouble() < 0) {
    if (!c10::isFloatingType(g.In(0).value.shape()->dtype)) Refuse("its dtype has no rule");
    Reduce<Neutral::kMost>(g);
  } else {
    Reduce<Neutral::kZero>(g);
  }
}

/// Variances and standard deviations. The number of elements is a parameter of the program.
template <bool root>
void Variance(G& g) {
  const Result& in = g.In(0);
  const Dims dims = ReducedDims(g, in.layout.size());
  const BoundedLayout layout = Reduced(g, in.layout, dims);
  if (!AnyVaries(in.layout, dims)) {
    g.Emit(g.Values(), g.node().attributes(),
           std::vector<BoundedLayout>(g.node().num_outputs(), layout));
    return;
  }
  const c10::ScalarType dtype = in.value.shape()->dtype;
  if (!c10::isFloatingType(dtype)) Refuse("a variance in another dtype has no rule");
  const Result wide{tensor::Cast(in.value, IsHalf(dtype) ? c10::ScalarType::Float : dtype),
                    in.layout, true};
  int64_t count = 1;
  for (size_t d = 0; d < dims.size(); ++d) count *= dims[d] ? SizeOf(in.layout[d]) : 1;
  const auto number = [](double value) {
    return tensor::MakeScalarParameter(value, c10::ScalarType::Double, true);
  };
  ir::Value degrees = number(std::max(0.0, static_cast<double>(count) - 1));
  if (const Argument& given = g.Named("correction"); given.given) {
    const ir::Value rest =
        g.Make(ir::ops::sub_Tensor, {number(static_cast<double>(count)), g.In(given.operand).value,
                                     tensor::MakeScalar(int64_t{1})});
    degrees =
        g.Make(ir::ops::maximum, {rest, tensor::MakeConstant(0.0, c10::ScalarType::Double, true)});
  }
  const auto mean_of = [&](bool keep) {
    return g.Make(ir::ops::div_Tensor, {Sum(g, g.Masked(wide, 0.0, dims), dims, keep),
                                        number(static_cast<double>(count))});
  };
  const ir::Value centered = g.Masked(
      {g.Make(ir::ops::sub_Tensor, {wide.value, mean_of(true), tensor::MakeScalar(int64_t{1})}),
       in.layout, true},
      0.0, dims);
  ir::Value result = g.Make(
      ir::ops::div_Tensor,
      {Sum(g, g.Make(ir::ops::mul_Tensor, {centered, centered}), dims, g.Int("keepdim") != 0),
       degrees});
  if (root) result = g.Make(ir::ops::sqrt, {result});
  g.Set(0, tensor::Cast(result, dtype), layout);
  if (g.node().num_outputs() > 1)
    g.Set(1, tensor::Cast(mean_of(g.Int("keepdim") != 0), dtype), layout);
}

void Softmax(G& g) {
  const Result& in = g.In(0);
  if (in.layout.empty()) Refuse("it has no dimension");
  ir::Node::Operands operands = g.Values();
  operands[0] = g.Masked(in, -std::numeric_limits<double>::infinity(),
                         Only(in.layout.size(), g.Dim(g.Int("dim"), in.layout.size())));
  g.Emit(std::move(operands), g.node().attributes(), {in.layout});
}

void SoftmaxBackward(G& g) {
  const Result &grad = g.In(0), &output = g.In(1);
  const BoundedLayout layout = Broadcast(grad.layout, output.layout);
  if (layout.empty()) Refuse("it has no dimension");
  const Dims dims = Only(layout.size(), g.Dim(g.Int("dim"), layout.size()));
  g.Emit({g.Masked(grad, 0.0, dims), g.Masked(output, 0.0, dims)}, g.node().attributes(), {layout});
}

}  // namespace

Table ReductionRules() {
  return {
      {&Reduce<Neutral::kZero>, {"aten::sum", "aten::any"}},
      {&Reduce<Neutral::kOne>, {"aten::prod", "aten::all"}},
      {&Reduce<Neutral::kLeast>, {"aten::amax", "aten::logsumexp"}},
      {&Reduce<Neutral::kMost>, {"aten::amin"}},
      {&LeastAndMost, {"aten::aminmax"}},
      {&Reduce<Neutral::kLeast, true>, {"aten::max", "aten::argmax"}},
      {&Reduce<Neutral::kMost, true>, {"aten::min", "aten::argmin"}},
      {&Mean, {"aten::mean"}},
      {&Norm, {"aten::linalg_vector_norm"}},
      {&Variance<false>, {"aten::var", "aten::var_mean"}},
      {&Variance<true>, {"aten::std", "aten::std_mean"}},
      {&Softmax, {"aten::_softmax", "aten::_safe_softmax", "aten::_log_softmax"}},
      {&SoftmaxBackward, {"aten::_softmax_backward_data", "aten::_log_softmax_backward_data"}},
  };
}

}  // namespace torch_xla::sizes::bounded
