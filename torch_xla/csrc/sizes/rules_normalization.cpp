// Layer, group and batch normalization.
#include <bit>

#include "sizes/rules_common.h"

namespace torch_xla::sizes::bounded {
namespace {

void LayerNorm(G& g) {
  const BoundedLayout& in = g.In(0).layout;
  const size_t outer = in.size() - g.Ints("normalized_shape").size();
  BoundedLayout rows = in;
  for (size_t d = outer; d < in.size(); ++d) {
    RequireFixed(in[d], "it normalizes a varying size");
    rows[d] = {};
  }
  g.Emit(g.Values(), g.node().attributes(), {in, rows, rows});
}

void LayerNormBackward(G& g) {
  const Result& in = *g.Tensor("input");
  const size_t outer = in.layout.size() - g.Ints("normalized_shape").size();
  BoundedLayout weight(in.layout.begin() + static_cast<std::ptrdiff_t>(outer), in.layout.end());
  RequireFixed(weight, "it normalizes a varying size");
  RequireSame(g.Tensor("grad_out")->layout, in.layout);
  for (const char* name : {"mean", "rstd"}) {
    const BoundedLayout& rows = g.Tensor(name)->layout;
    for (size_t d = 0; d < outer; ++d) {
      if (!Same(rows.at(d), in.layout[d])) Refuse("its operands have different sizes that vary");
    }
  }
  ir::Node::Operands operands = g.Values();
  for (const char* name : {"grad_out", "input", "mean", "rstd"}) {
    const size_t operand = g.Named(name).operand;
    operands[operand] = g.Masked(g.In(operand), 0.0);
  }
  g.Emit(std::move(operands), g.node().attributes(), {in.layout, weight, weight});
}

/// Samples are independent, except in the gradients of the weights.
void GroupNorm(G& g) {
  const bool backward = g.Has("grad_out");
  const Result& in = *g.Tensor("input");
  if (in.layout.size() < 2) Refuse("it has no channels");
  const BoundedDim samples = in.layout[0];
  for (size_t d = 1; d < in.layout.size(); ++d)
    RequireFixed(in.layout[d], "it normalizes a varying size");
  ir::Node::Operands operands = g.Values();
  if (backward) {
    for (const char* name : {"grad_out", "input", "mean", "rstd"}) {
      const size_t operand = g.Named(name).operand;
      RequireSame({g.In(operand).layout.at(0)}, {samples});
      operands[operand] = g.Masked(g.In(operand), 0.0);
    }
  }
  ir::Words words = g.node().attributes();
  words[g.Named("N").word] = static_cast<uint64_t>(BoundOf(samples));
  std::vector<BoundedLayout> layouts;
  for (size_t i = 0; i < g.node().num_outputs(); ++i) {
    if (!g.node().shape(i)) {
      layouts.emplace_back();
    } else if (i == 0 || !backward) {
      layouts.push_back(WithBatch(g, i, samples));
    } else {
      layouts.push_back(FixedLayout(g.node().shape(i)->dims));
    }
  }
  g.Emit(std::move(operands), std::move(words), layouts);
}

/// Elementwise operations and sums over all dimensions but the channels, for batch normalization.
struct Channels {
  G& g;
  const BoundedLayout& layout;
  Dims dims;  // all but the channels
  ir::Value count;

  Channels(G& graph, const BoundedLayout& in)
      : g(graph), layout(in), dims(in.size(), true), count() {
    if (in.size() < 2) Refuse("it has no channels");
    RequireFixed(in[1], "the number of channels varies");
    dims[1] = false;
    count = g.Count(in, dims);
  }
  ir::Value Sum(const ir::Value& x) const { return bounded::Sum(g, x, dims); }
  /// [channels] as [1, channels, 1, …].
  ir::Value Wide(const ir::Value& x) const {
    std::vector<int64_t> sizes(layout.size(), 1), strides(layout.size(), 1);
    sizes[1] = SizeOf(layout[1]);
    return g.View(x, sizes, strides);
  }
  ir::Value Add(const ir::Value& a, const ir::Value& b) const { return bounded::Add(g, a, b); }
  ir::Value Sub(const ir::Value& a, const ir::Value& b) const {
    return g.Make(ir::ops::sub_Tensor, {a, b, tensor::MakeScalar(int64_t{1})});
  }
  ir::Value Mul(const ir::Value& a, const ir::Value& b) const {
    return g.Make(ir::ops::mul_Tensor, {a, b});
  }
  ir::Value Div(const ir::Value& a, const ir::Value& b) const {
    return g.Make(ir::ops::div_Tensor, {a, b});
  }
  ir::Value Zeroed(const ir::Value& x) const { return g.Masked({x, layout, true}, 0.0); }
};

double Double(const G& g, std::string_view name) {
  return std::bit_cast<double>(g.node().attributes()[g.Named(name).word]);
}

void BatchNorm(G& g) {
  const Result& in = g.In(0);
  if (g.Has("training") && g.Int("training") == 0) {
    std::vector<BoundedLayout> layouts{in.layout};
    for (size_t i = 1; i < g.node().num_outputs(); ++i)
      layouts.push_back(FixedLayout(g.node().shape(i)->dims));
    const Channels checked(g, in.layout);
    g.Emit(g.Values(), g.node().attributes(), layouts);
    return;
  }
  for (size_t i = 0; i < g.node().operands().size(); ++i) {
    if (g.In(i).value.shape()->dtype != c10::ScalarType::Float)
      Refuse("batch normalization in another dtype has no rule");
  }
  const Channels c(g, in.layout);
  const ir::Value mean = c.Div(c.Sum(c.Zeroed(in.value)), c.count);
  const ir::Value centered = c.Zeroed(c.Sub(in.value, c.Wide(mean)));
  const ir::Value variance = c.Div(c.Sum(c.Mul(centered, centered)), c.count);
  const ir::Value inverse =
      g.Make(ir::ops::rsqrt, {c.Add(variance, tensor::MakeScalar(Double(g, "eps")))});
  ir::Value out = c.Mul(centered, c.Wide(inverse));
  if (const Result* weight = g.Tensor("weight")) out = c.Mul(out, c.Wide(weight->value));
  if (const Result* bias = g.Tensor("bias")) out = c.Add(out, c.Wide(bias->value));
  const BoundedLayout channels{in.layout[1]};
  g.Set(0, out, in.layout);
  g.Set(1, mean, channels);
  g.Set(2, inverse, channels);
  if (g.Has("training")) return;
  const double momentum = Double(g, "momentum");
  size_t next = 3;
  const auto move = [&](const Result* running, const ir::Value& to) {
    if (!running) return;
    g.Set(next++,
          c.Add(c.Mul(running->value, tensor::MakeScalar(1 - momentum)),
                c.Mul(to, tensor::MakeScalar(momentum))),
          channels);
  };
  double n = 1;
  for (size_t d = 0; d < in.layout.size(); ++d) {
    if (d != 1) n *= static_cast<double>(SizeOf(in.layout[d]));
  }
  move(g.Tensor("running_mean"), mean);
  move(g.Tensor("running_var"),
       c.Mul(variance, tensor::MakeScalarParameter(n / (n - 1), c10::ScalarType::Double, true)));
}

void BatchNormBackward(G& g) {
  const Result &grad = *g.Tensor("grad_out"), &in = *g.Tensor("input");
  if (g.Int("train") == 0 || !g.Tensor("save_mean") || !g.Tensor("save_invstd"))
    Refuse("the gradient of batch normalization that does not train has no rule");
  for (size_t d = 0; d < in.layout.size(); ++d) {
    if (!Same(in.layout[d], grad.layout.at(d)))
      Refuse("its operands have different sizes that vary");
  }
  for (size_t i = 0; i < g.node().operands().size(); ++i) {
    if (g.In(i).value.shape()->dtype != c10::ScalarType::Float)
      Refuse("batch normalization in another dtype has no rule");
  }
  const Channels c(g, in.layout);
  const ir::Value inverse = g.Tensor("save_invstd")->value;
  const ir::Value given = c.Zeroed(grad.value);
  const ir::Value normal =
      c.Zeroed(c.Mul(c.Sub(in.value, c.Wide(g.Tensor("save_mean")->value)), c.Wide(inverse)));
  const ir::Value of_bias = c.Sum(given), of_weight = c.Sum(c.Mul(given, normal));
  ir::Value scale = inverse;
  if (const Result* weight = g.Tensor("weight")) scale = c.Mul(scale, weight->value);
  const ir::Value of_input = c.Mul(c.Sub(c.Sub(given, c.Wide(c.Div(of_bias, c.count))),
                                         c.Mul(normal, c.Wide(c.Div(of_weight, c.count)))),
                                   c.Wide(scale));
  const BoundedLayout channels{in.layout[1]};
  if (g.node().shape(0)) g.Set(0, of_input, in.layout);
  if (g.node().shape(1)) g.Set(1, of_weight, channels);
  if (g.node().shape(2)) g.Set(2, of_bias, channels);
}

}  // namespace

Table NormalizationRules() {
  return {
      {&LayerNorm, {"aten::native_layer_norm"}},
      {&LayerNormBackward, {"aten::native_layer_norm_backward"}},
      {&GroupNorm, {"aten::native_group_norm", "aten::native_group_norm_backward"}},
      {&BatchNorm, {"xla::batch_norm", "aten::native_batch_norm"}},
      {&BatchNormBackward, {"aten::native_batch_norm_backward"}},
  };
}

}  // namespace torch_xla::sizes::bounded
