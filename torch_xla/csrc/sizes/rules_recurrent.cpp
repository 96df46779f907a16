// Recurrent layers.
#include "sizes/rules_common.h"

namespace torch_xla::sizes::bounded {
namespace {

/// `gates` with its padded time steps replaced: by `gate` in the columns of the second gate, and
/// by `other` in the columns of the other two or three gates.
ir::Value GatesAfterEnd(G& g, const Result& gates, int64_t hidden, double gate, double other) {
  if (gates.value.shape()->dtype != c10::ScalarType::Float)
    Refuse("recurrent layers in another dtype have no rule");
  const auto number = [](const c10::Scalar& value, c10::ScalarType dtype) {
    return tensor::MakeConstant(value, dtype, false);
  };
  const int64_t all = SizeOf(gates.layout[2]);
  const ir::Value place = g.Iota(all);
  const ir::Value second =
      g.Make(ir::ops::logical_and,
             {g.Make(ir::ops::ge_Tensor, {place, number(hidden, c10::ScalarType::Long)}),
              g.Make(ir::ops::lt_Tensor, {place, number(2 * hidden, c10::ScalarType::Long)})});
  const ir::Value padding =
      g.Make(ir::ops::where_self,
             {second, number(gate, c10::ScalarType::Float), number(other, c10::ScalarType::Float)});
  const BoundedDim& time = gates.layout[0];
  const ir::Value within = g.View(g.IsWithin(time), {BoundOf(time), 1, 1}, {1, 1, 1});
  return g.Make(ir::ops::where_self,
                {within, gates.value, g.View(padding, {1, 1, all}, {1, 1, 1})});
}

constexpr int64_t kLstmCell = 0, kGruCell = 1;

/// The array with its time steps in reverse order, padding at the end.
ir::Value Reversed(G& g, const ir::Value& of, const BoundedDim& time) {
  const ir::Value place =
      g.Make(ir::ops::sub_Tensor,
             {Number(SizeOf(time) - 1), g.Iota(BoundOf(time)), tensor::MakeScalar(int64_t{1})});
  const ir::Value zero = tensor::MakeConstant(int64_t{0}, c10::ScalarType::Long, false);
  return Select(g, of, 0, g.Make(ir::ops::maximum, {place, zero}));
}

/// Samples are independent. The gates of padded time steps are set to keep the last state. A layer
/// that goes backwards in time goes forwards over the reversed time steps.
void RecurrentLayer(G& g) {
  const bool backward = g.Has("grad");
  const size_t first = g.Named(backward ? "grad" : "gates").operand;
  const BoundedLayout& in = g.In(first).layout;
  const BoundedDim time = in.at(0), samples = in.at(1);
  RequireFixed(in[2], "the number of features varies");
  const int64_t kind = g.Int("kind");
  ir::Node::Operands operands = g.Values();
  for (size_t i = 0; i < operands.size(); ++i) {
    const BoundedLayout& layout = g.In(i).layout;
    const bool is_weight =
        i == g.Named("weight").operand || (!backward && i == g.Named("bias").operand);
    if (is_weight) {
      RequireFixed(layout, "weights vary");
    } else if (layout.size() == 3) {
      RequireSame({layout[0], layout[1]}, {time, samples});
    } else if (!Same(layout.at(0), samples)) {
      Refuse("its operands have different sizes that vary");
    }
  }
  ir::Words words = g.node().attributes();
  const bool reverses = Varies(time) && g.Int("reverse") != 0;
  if (Varies(time)) {
    if (time.size() > 1) Refuse("it goes along several sizes");
    const bool has_gate = kind == kLstmCell || kind == kGruCell;
    const int64_t hidden = g.In(g.Named("hidden").operand).value.shape()->dims[1];
    const auto forwards = [&](size_t i) -> Result {
      const Result& given = g.In(i);
      return {reverses ? Reversed(g, given.value, time) : given.value, given.layout, true};
    };
    if (!backward) {
      const Result gates = forwards(first);
      operands[first] =
          has_gate ? GatesAfterEnd(g, gates, hidden, /*gate=*/1e9, /*other=*/-1e9) : gates.value;
    }
    for (size_t i = 0; backward && i < operands.size(); ++i) {
      if (g.In(i).layout.size() == 3) operands[i] = g.Masked(forwards(i), 0.0, Only(3, 0));
    }
    if (backward && has_gate) {
      const size_t kept = g.Named("states").operand + 1;
      operands[kept] = GatesAfterEnd(g, forwards(kept), hidden, /*gate=*/1, /*other=*/0);
    }
    words[g.Named("reverse").word] = 0;
  }
  std::vector<BoundedLayout> layouts;
  for (size_t i = 0; i < g.node().num_outputs(); ++i) {
    const ir::ShapeRef shape = g.node().shape(i);
    if (!shape) Refuse("a result is missing");
    layouts.push_back(shape->rank() == 3 ? BoundedLayout{time, samples, FixedDim(shape->dims[2])}
                                         : BoundedLayout{samples, FixedDim(shape->dims.at(1))});
  }
  const ir::NodePtr node =
      MakeShaped(g, g.node().op(), std::move(operands), std::move(words), layouts);
  for (size_t i = 0; i < layouts.size(); ++i) {
    const ir::Value made{node, static_cast<uint32_t>(i)};
    g.Set(i, reverses && layouts[i].size() == 3 ? Reversed(g, made, time) : made, layouts[i]);
  }
}

}  // namespace

Table RecurrentRules() {
  return {
      {&RecurrentLayer, {"xla::recurrent", "xla::recurrent_backward"}},
  };
}

}  // namespace torch_xla::sizes::bounded
