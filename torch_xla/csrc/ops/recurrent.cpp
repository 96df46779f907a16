// Lowerings of recurrent layers: a loop over the time steps, whose body has a single product with
// the weights.
#include "ops/recurrent.h"

#include "XLALowerings.h"
#include "cpu/calls.h"
#include "lowering/elementwise.h"
#include "lowering/kernel_choice.h"
#include "lowering/library_call.h"
#include "ops/dot.h"
#include "ops/indexing.h"
#include "stablehlo/arithmetic.h"

namespace torch_xla::lowering::aten {
namespace {

using stablehlo::Convert;
using stablehlo::Literal;

/// The gate number `index`: `width` columns of `gates`.
Value Gate(Value gates, int64_t index, int64_t width) {
  return stablehlo::Slice(gates, {0, index * width}, {gates.dim(0), (index + 1) * width});
}

Value Gates(const std::vector<Value>& gates) { return stablehlo::Concatenate(gates, 1); }

bool CallsLibrary(const LoweringContext& cx, Value x, Cell kind) {
  // The loops of plain cells are as fast without a call.
  if (x.element() != ElementType::kF32 || NumGates(kind) == 1) return false;
  return ChoosesLibrary(cx, "recurrent", {"f32"});
}

std::vector<stablehlo::Type> OutputTypes(const LoweringContext& cx) {
  std::vector<stablehlo::Type> types;
  for (size_t i = 0; i < cx.node().num_outputs(); ++i) types.push_back(cx.output_type(i));
  return types;
}

/// The results of one time step: the states after it, and the values to keep.
struct Step {
  Value hidden;
  std::optional<Value> cell, gates;
};

Step Forward(Cell kind, Value gates, Value products, Value hidden, std::optional<Value> cell) {
  const int64_t h = hidden.dim(1);
  auto sum = [&](int64_t i) { return Gate(gates, i, h) + Gate(products, i, h); };
  switch (kind) {
    case Cell::kLstm: {
      Value in = Logistic(sum(0)), forget = Logistic(sum(1)), update = Tanh(sum(2));
      Value out = Logistic(sum(3));
      Value next = forget * *cell + in * update;
      Value output = out * Tanh(next);
      return {output, next, Gates({in, forget, update, out})};
    }
    case Cell::kGru: {
      Value reset = Logistic(sum(0)), update = Logistic(sum(1)), product = Gate(products, 2, h);
      Value next = Tanh(Gate(gates, 2, h) + reset * product);
      Value output = (hidden - next) * update + next;
      return {output, std::nullopt, Gates({reset, update, next, product})};
    }
    case Cell::kTanh: {
      Value output = Tanh(sum(0));
      return {output, std::nullopt, std::nullopt};
    }
    case Cell::kRelu: {
      // As PyTorch's, which keeps NaN.
      Value x = sum(0), output = Select(x < 0, Literal(0), x);
      return {output, std::nullopt, std::nullopt};
    }
  }
  throw std::logic_error("no such cell");
}

/// Gradients at one time step: of the gates, of the products, of the cells before it, and the part
/// of the previous state's gradient that does not come through its products.
struct BackwardStep {
  Value gates, products;
  std::optional<Value> cell, hidden;
};

BackwardStep Backward(Cell kind, Value grad, std::optional<Value> grad_cell, Value before,
                      std::optional<Value> cell_before, const std::vector<Value>& states) {
  const int64_t h = grad.dim(1);
  switch (kind) {
    case Cell::kLstm: {
      auto saved = [&](int64_t i) { return Gate(states[1], i, h); };
      Value in = saved(0), forget = saved(1), update = saved(2), out = saved(3);
      Value squashed = Tanh(states[2]);
      Value of_cell = *grad_cell + grad * out * (1 - squashed * squashed);
      Value gates =
          Gates({of_cell * update * in * (1 - in), of_cell * *cell_before * forget * (1 - forget),
                 of_cell * in * (1 - update * update), grad * squashed * out * (1 - out)});
      return {gates, gates, of_cell * forget, std::nullopt};
    }
    case Cell::kGru: {
      auto saved = [&](int64_t i) { return Gate(states[1], i, h); };
      Value reset = saved(0), update = saved(1), next = saved(2);
      Value of_next = grad * (1 - update) * (1 - next * next);
      Value of_update = grad * (before - next) * update * (1 - update);
      Value of_reset = of_next * saved(3) * reset * (1 - reset);
      return {Gates({of_reset, of_update, of_next}), Gates({of_reset, of_update, of_next * reset}),
              std::nullopt, grad * update};
    }
    case Cell::kTanh: {
      Value gates = grad * (1 - states[0] * states[0]);
      return {gates, gates, std::nullopt, std::nullopt};
    }
    case Cell::kRelu: {
      Value gates = Select(states[0] <= 0, Literal(0), grad);
      return {gates, gates, std::nullopt, std::nullopt};
    }
  }
  throw std::logic_error("no such cell");
}

}  // namespace

std::vector<Value> Recurrent(LoweringContext& cx, Value gates, Value weight, Value bias,
                             Value hidden, std::optional<Value> cell, int64_t kind, bool reverse,
                             bool /*keeps*/) {
  const auto which = static_cast<Cell>(kind);
  if (CallsLibrary(cx, gates, which)) {
    std::vector<Value> operands{gates, weight, bias, hidden};
    if (cell) operands.push_back(*cell);
    return CallLibrary(cpu::kRecurrentTarget, operands, OutputTypes(cx),
                       cpu::RecurrentCall{which == Cell::kLstm, reverse});
  }
  const ElementType element = gates.element(), wide = ComputeType(element);
  const int64_t times = gates.dim(0);
  bias = Convert(bias, wide);
  // The loop's state: the time, the hidden states, and the results over all times.
  const size_t states = cell ? 3 : 2;
  std::vector<Value> init{Scalar(gates, 0, ElementType::kS64), Convert(hidden, wide)};
  if (cell) init.push_back(Convert(*cell, wide));
  for (const stablehlo::Type& type : OutputTypes(cx)) {
    if (type.rank() == 3) init.push_back(stablehlo::Constant(cx.builder(), 0, type));
  }
  auto more = [&](std::span<const Value> v) -> std::vector<Value> { return {v[0] < times}; };
  auto next = [&](std::span<const Value> v) -> std::vector<Value> {
    Value t = reverse ? times - 1 - v[0] : v[0];
    Value products =
        Dot(cx.platform(), Convert(v[1], element), weight,
            {.lhs_contracting = {1}, .rhs_contracting = {1}}, PrecisionOn(cx.platform()), wide);
    const Step step = Forward(which, Convert(AtTime(gates, t), wide), products + bias, v[1],
                              cell ? std::optional(v[2]) : std::nullopt);
    std::vector<Value> after{v[0] + 1, step.hidden};
    if (cell) after.push_back(*step.cell);
    for (std::optional<Value> made : {std::optional(step.hidden), step.gates, step.cell}) {
      if (after.size() == v.size()) break;  // not kept
      if (made) after.push_back(SetTime(v[after.size()], Convert(*made, element), t));
    }
    return after;
  };
  const std::vector<Value> made = stablehlo::While(init, more, next);
  std::vector<Value> results{made[states]};
  if (cell) results.push_back(made[2]);
  results.insert(results.end(), made.begin() + states + 1, made.end());
  return ToOutputElements(cx, results);
}

std::vector<Value> RecurrentBackward(LoweringContext& cx, Value grad, Value weight, Value hidden,
                                     const std::vector<Value>& states, std::optional<Value> cell,
                                     std::optional<Value> grad_cell, int64_t kind, bool reverse) {
  const auto which = static_cast<Cell>(kind);
  if (CallsLibrary(cx, grad, which)) {
    std::vector<Value> operands{grad, weight, hidden};
    operands.insert(operands.end(), states.begin(), states.end());
    if (cell) operands.insert(operands.end(), {*cell, *grad_cell});
    return CallLibrary(cpu::kRecurrentBackwardTarget, operands, OutputTypes(cx),
                       cpu::RecurrentCall{which == Cell::kLstm, reverse});
  }
  const ElementType element = grad.element(), wide = ComputeType(element);
  const int64_t times = grad.dim(0);
  const bool is_gru = which == Cell::kGru;
  // The loop's state: the number of steps done, the states' gradients, the results over all times.
  std::vector<Value> init{Scalar(grad, 0, ElementType::kS64),
                          stablehlo::ZerosLike(Convert(hidden, wide)),
                          stablehlo::Constant(cx.builder(), 0, cx.output_type(0))};
  if (is_gru) init.push_back(stablehlo::Constant(cx.builder(), 0, cx.output_type(2)));
  if (cell) init.push_back(Convert(*grad_cell, wide));
  auto more = [&](std::span<const Value> v) -> std::vector<Value> { return {v[0] < times}; };
  auto next = [&](std::span<const Value> v) -> std::vector<Value> {
    Value t = reverse ? v[0] : times - 1 - v[0];
    Value is_first = Equal(v[0], times - 1);
    // The previous state: the state of another time step, or the initial state.
    auto before = [&](Value states, Value first) {
      Value earlier = reverse ? Minimum(t + 1, times - 1) : Maximum(t - 1, 0);
      return Select(is_first, Convert(first, wide), Convert(AtTime(states, earlier), wide));
    };
    std::vector<Value> now;
    for (Value state : states) now.push_back(Convert(AtTime(state, t), wide));
    std::optional<Value> cell_before;
    if (cell) cell_before = before(states[2], *cell);
    BackwardStep step = Backward(which, v[1] + Convert(AtTime(grad, t), wide),
                                 cell ? std::optional(v.back()) : std::nullopt,
                                 before(states[0], hidden), cell_before, now);
    Value reaches =
        Dot(cx.platform(), Convert(step.products, element), weight,
            {.lhs_contracting = {1}, .rhs_contracting = {0}}, PrecisionOn(cx.platform()), wide);
    if (step.hidden) reaches = reaches + *step.hidden;
    std::vector<Value> after{v[0] + 1, reaches, SetTime(v[2], Convert(step.gates, element), t)};
    if (is_gru) after.push_back(SetTime(v[3], Convert(step.products, element), t));
    if (cell) after.push_back(*step.cell);
    return after;
  };
  std::vector<Value> results = stablehlo::While(init, more, next);
  std::vector<Value> outputs{results[2], results[1]};
  if (is_gru || cell) outputs.push_back(results.back());
  return ToOutputElements(cx, outputs);
}

}  // namespace torch_xla::lowering::aten
