// lstm, gru, rnn_tanh and rnn_relu of whole tensors and of packed sequences: one node for each
// layer and direction. PyTorch's composition would have ten operations in each time step.
#include <ATen/CompositeExplicitAutogradFunctions.h>
#include <ATen/CompositeImplicitAutogradFunctions.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nonzero_static.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "XLANativeFunctions.h"
#include "XLAOps.h"
#include "aten/node_builder.h"
#include "ops/recurrent.h"

namespace torch_xla {
namespace {

using torch::autograd::variable_list;

/// The operands of xla::recurrent; only an LSTM has `cell`.
struct Sequence {
  at::Tensor gates, weight, bias, hidden;
  std::optional<at::Tensor> cell;
};

/// The results of xla::recurrent (ops/recurrent.h).
std::vector<at::Tensor> Recurrent(const Sequence& x, Cell kind, bool reverse, bool keeps) {
  const at::ScalarType dtype = x.gates.scalar_type();
  const int64_t times = x.gates.size(0), samples = x.gates.size(1), h = x.hidden.size(1);
  const ir::ShapeRef output = ir::GetShape(dtype, {times, samples, h});
  ir::OutputShapes results{{output}};
  if (kind == Cell::kLstm) results.shapes.push_back(ir::GetShape(dtype, x.hidden.sizes()));
  if (keeps && NumGates(kind) > 1)
    results.shapes.push_back(ir::GetShape(dtype, {times, samples, 4 * h}));
  if (keeps && kind == Cell::kLstm) results.shapes.push_back(output);
  ir::ops::recurrent.counter->Add();
  aten::NodeBuilder builder(ir::ops::recurrent);
  builder.Add(x.gates, x.weight, x.bias, x.hidden, x.cell, static_cast<int64_t>(kind), reverse,
              keeps);
  return builder.List(results);
}

/// Gradients of the gates and the hidden state, and the other results of the node.
std::vector<at::Tensor> RecurrentBackward(const at::Tensor& grad,
                                          const std::optional<at::Tensor>& grad_cell,
                                          const Sequence& x, const std::vector<at::Tensor>& states,
                                          Cell kind, bool reverse) {
  const at::ScalarType dtype = grad.scalar_type();
  ir::OutputShapes shapes{
      {ir::GetShape(dtype, x.gates.sizes()), ir::GetShape(dtype, x.hidden.sizes())}};
  if (kind == Cell::kLstm) shapes.shapes.push_back(shapes.shapes[1]);
  if (kind == Cell::kGru) shapes.shapes.push_back(shapes.shapes[0]);
  ir::ops::recurrent_backward.counter->Add();
  aten::NodeBuilder builder(ir::ops::recurrent_backward);
  builder.Add(grad, x.weight, x.hidden);
  builder.TensorList(states);
  builder.Add(x.cell, grad_cell, static_cast<int64_t>(kind), reverse);
  return builder.List(shapes);
}

/// The same by ordinary operators for each time step, for gradients of gradients.
variable_list Unrolled(const Sequence& x, Cell kind, bool reverse) {
  const int64_t times = x.gates.size(0);
  at::Tensor hidden = x.hidden, cell = x.cell.value_or(at::Tensor());
  std::vector<at::Tensor> outputs(times);
  for (int64_t step = 0; step < times; ++step) {
    const int64_t t = reverse ? times - 1 - step : step;
    const at::Tensor now = x.gates.select(0, t);
    const at::Tensor products = at::linear(hidden, x.weight, x.bias);
    if (kind == Cell::kLstm) {
      const auto gates = (now + products).chunk(4, 1);
      cell = at::sigmoid(gates[1]) * cell + at::sigmoid(gates[0]) * at::tanh(gates[2]);
      hidden = at::sigmoid(gates[3]) * at::tanh(cell);
    } else if (kind == Cell::kGru) {
      const auto gates = now.chunk(3, 1), added = products.chunk(3, 1);
      const at::Tensor update = at::sigmoid(gates[1] + added[1]);
      const at::Tensor next = at::tanh(gates[2] + at::sigmoid(gates[0] + added[0]) * added[2]);
      hidden = (hidden - next) * update + next;
    } else {
      hidden = kind == Cell::kTanh ? at::tanh(now + products) : at::relu(now + products);
    }
    outputs[t] = hidden;
  }
  variable_list results{at::stack(outputs)};
  if (kind == Cell::kLstm) results.push_back(cell);
  return results;
}

/// (gates, weight, bias, hidden, cell or undefined) -> output, and for an LSTM the last cells.
struct Recurrence : torch::autograd::Function<Recurrence> {
  static variable_list forward(torch::autograd::AutogradContext* ctx, const at::Tensor& gates,
                               const at::Tensor& weight, const at::Tensor& bias,
                               const at::Tensor& hidden, const std::optional<at::Tensor>& cell,
                               int64_t kind, bool reverse) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto which = static_cast<Cell>(kind);
    const std::vector<at::Tensor> made =
        Recurrent({gates, weight, bias, hidden, cell}, which, reverse, /*keeps=*/true);
    const auto kept = made.begin() + (which == Cell::kLstm ? 2 : 1);
    variable_list saved{gates, weight, bias, hidden, cell.value_or(at::Tensor()), made[0]};
    saved.insert(saved.end(), kept, made.end());
    ctx->save_for_backward(saved);
    ctx->saved_data["kind"] = kind;
    ctx->saved_data["reverse"] = reverse;
    return {made.begin(), kept};
  }

  static variable_list backward(torch::autograd::AutogradContext* ctx, variable_list grads) {
    const auto kind = static_cast<Cell>(ctx->saved_data["kind"].toInt());
    const bool reverse = ctx->saved_data["reverse"].toBool();
    const variable_list saved = ctx->get_saved_variables();
    const Sequence x{saved[0], saved[1], saved[2], saved[3],
                     kind == Cell::kLstm ? std::optional(saved[4]) : std::nullopt};
    variable_list result =
        at::GradMode::is_enabled()
            ? OfGradients(x, kind, reverse, grads)
            : Gradients(ctx, x, {saved.begin() + 5, saved.end()}, kind, reverse, std::move(grads));
    result.resize(7);  // `kind` and `reverse` have no gradients
    return result;
  }

 private:
  static variable_list Gradients(torch::autograd::AutogradContext* ctx, const Sequence& x,
                                 const std::vector<at::Tensor>& states, Cell kind, bool reverse,
                                 variable_list grads) {
    const at::Tensor& output = states[0];
    if (!grads[0].defined()) grads[0] = at::zeros_like(output);
    std::optional<at::Tensor> grad_cell;
    if (kind == Cell::kLstm) grad_cell = grads[1].defined() ? grads[1] : at::zeros_like(*x.cell);
    const auto made = RecurrentBackward(grads[0], grad_cell, x, states, kind, reverse);
    const at::Tensor products = (kind == Cell::kGru ? made[2] : made[0]).flatten(0, 1);
    variable_list result(5);
    result[0] = made[0];
    if (ctx->needs_input_grad(1)) {
      const int64_t others = output.size(0) - 1;
      const at::Tensor first = x.hidden.unsqueeze(0);
      const at::Tensor before = reverse ? at::cat({output.narrow(0, 1, others), first})
                                        : at::cat({first, output.narrow(0, 0, others)});
      result[1] = at::mm(products.t(), before.flatten(0, 1));
    }
    if (ctx->needs_input_grad(2)) result[2] = products.sum(0);
    result[3] = made[1];
    if (kind == Cell::kLstm) result[4] = made[2];
    return result;
  }

  static variable_list OfGradients(const Sequence& x, Cell kind, bool reverse,
                                   const variable_list& grads) {
    variable_list inputs, of, with, result(5);
    std::vector<size_t> places;
    const at::Tensor all[] = {x.gates, x.weight, x.bias, x.hidden, x.cell.value_or(at::Tensor())};
    for (size_t i = 0; i < std::size(all); ++i) {
      if (!all[i].defined() || !all[i].requires_grad()) continue;
      inputs.push_back(all[i]);
      places.push_back(i);
    }
    const variable_list outputs = Unrolled(x, kind, reverse);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!grads[i].defined()) continue;
      of.push_back(outputs[i]);
      with.push_back(grads[i]);
    }
    const variable_list made = torch::autograd::grad(of, inputs, with, /*retain_graph=*/true,
                                                     /*create_graph=*/true, /*allow_unused=*/true);
    for (size_t i = 0; i < places.size(); ++i) result[places[i]] = made[i];
    return result;
  }
};

/// Uses Recurrence only if there is a gradient, since it costs time.
variable_list Differentiable(const Sequence& x, Cell kind, bool reverse) {
  if (torch::autograd::compute_requires_grad(x.gates, x.weight, x.bias, x.hidden, x.cell)) {
    return Recurrence::apply(x.gates, x.weight, x.bias, x.hidden, x.cell,
                             static_cast<int64_t>(kind), reverse);
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return Recurrent(x, kind, reverse, /*keeps=*/false);
}

/// Where the S elements of a packed sequence lie in a padded array of T times and N samples.
/// Indices depend on the lengths, so they are computed from data: the same program serves other
/// lengths.
struct Packing {
  at::Tensor lengths;       // [N]
  at::Tensor within;        // [T, N]: whether the sample has an element at the time
  at::Tensor place;         // [T, N]: which element of the packed sequence it is
  at::Tensor time, sample;  // [S]

  static bool Fits(const at::Tensor& data, const at::Tensor& batch_sizes) {
    if (!aten::IsXla(data) || data.dim() == 0 || data.numel() == 0 || !batch_sizes.is_cpu() ||
        batch_sizes.dim() != 1 || batch_sizes.scalar_type() != at::kLong ||
        batch_sizes.numel() == 0) {
      return false;
    }
    const auto sizes = batch_sizes.accessor<int64_t, 1>();
    int64_t sum = 0;
    for (int64_t t = 0; t < sizes.size(0); ++t) {
      if (sizes[t] < 1 || (t > 0 && sizes[t] > sizes[t - 1])) return false;
      sum += sizes[t];
    }
    return sum == data.size(0);
  }

  /// Of `batch_sizes` that fit, on the device of `data`. With `longest` there are as many times.
  static Packing Of(const at::Tensor& batch_sizes, const at::Tensor& data, int64_t longest = 0) {
    const auto sizes = batch_sizes.accessor<int64_t, 1>();
    const int64_t times = std::max(longest, sizes.size(0)), samples = sizes[0];
    at::Tensor counts = at::empty({times}, at::kLong), lengths = at::empty({samples}, at::kLong);
    auto* count = counts.mutable_data_ptr<int64_t>();
    auto* length = lengths.mutable_data_ptr<int64_t>();
    std::fill_n(length, samples, 0);
    int64_t elements = 0;
    for (int64_t t = 0; t < times; ++t) {
      elements += count[t] = t < sizes.size(0) ? sizes[t] : 0;
      for (int64_t n = 0; n < count[t]; ++n) ++length[n];
    }
    counts = aten::FromCpu(counts, data.get_device());
    Packing made{.lengths = aten::FromCpu(lengths, data.get_device())};
    made.within = at::arange(times, counts.options()).unsqueeze(1).lt(made.lengths);
    made.place = (counts.cumsum(0) - counts).unsqueeze(1) + at::arange(samples, counts.options());
    made.place = made.place * made.within;  // other places may be out of range
    const at::Tensor found = at::nonzero_static(made.within, elements);
    made.time = found.select(1, 0), made.sample = found.select(1, 1);
    return made;
  }

  /// Of each sample's elements in reverse order.
  Packing Reversed() const {
    Packing made = *this;
    const at::Tensor back =
        lengths - 1 - at::arange(within.size(0), lengths.options()).unsqueeze(1);
    made.place = place.gather(0, back.clamp_min(0));
    made.time = lengths.index_select(0, sample) - 1 - time;
    return made;
  }

  at::Tensor Pad(const at::Tensor& data, const at::Tensor& padding) const {
    std::vector<int64_t> sizes = within.sizes().vec();
    sizes.resize(static_cast<size_t>(data.dim()) + 1, 1);
    return at::where(within.view(sizes), at::index(data, {place}), padding);
  }
  at::Tensor Pack(const at::Tensor& padded) const { return at::index(padded, {time, sample}); }
};

/// Packing::Pad or Pack, each of which is the gradient of the other one: no index adds.
template <bool pads>
struct Moved : torch::autograd::Function<Moved<pads>> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& data,
                            const std::optional<at::Tensor>& padding, const at::Tensor& within,
                            const at::Tensor& place, const at::Tensor& time,
                            const at::Tensor& sample) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({within, place, time, sample});
    const Packing packing{{}, within, place, time, sample};
    return pads ? packing.Pad(data, *padding) : packing.Pack(data);
  }
  static variable_list backward(torch::autograd::AutogradContext* ctx, variable_list grads) {
    variable_list result(6);
    if (!grads[0].defined()) return result;
    const variable_list of = ctx->get_saved_variables();
    std::optional<at::Tensor> padding;
    if (!pads) padding = at::zeros({}, grads[0].options());
    result[0] = Moved<!pads>::apply(grads[0], padding, of[0], of[1], of[2], of[3]);
    return result;
  }
};

at::Tensor Padded(const Packing& of, const at::Tensor& data, const at::Tensor& padding) {
  if (data._fw_grad(/*level=*/0).defined()) return of.Pad(data, padding);
  return Moved<true>::apply(data, std::optional(padding), of.within, of.place, of.time, of.sample);
}

at::Tensor Packed(const Packing& of, const at::Tensor& padded) {
  if (padded._fw_grad(/*level=*/0).defined()) return of.Pack(padded);
  return Moved<false>::apply(padded, std::optional<at::Tensor>(), of.within, of.place, of.time,
                             of.sample);
}

/// The operators' arguments. `hidden` has the initial states; an LSTM's hidden states come first.
struct Layers {
  Cell kind;
  at::Tensor input;
  at::TensorList hidden, params;
  bool has_biases;
  int64_t num_layers;
  double dropout;
  bool train, bidirectional, batch_first;
  at::Tensor batch_sizes{};  // of a packed sequence

  int64_t directions() const { return bidirectional ? 2 : 1; }
  size_t params_each() const { return has_biases ? 4 : 2; }
  bool packed() const { return batch_sizes.defined(); }
  int64_t times() const { return packed() ? batch_sizes.size(0) : input.size(batch_first ? 1 : 0); }
  int64_t samples() const {
    return packed() ? batch_sizes.const_data_ptr<int64_t>()[0] : input.size(batch_first ? 0 : 1);
  }

  /// Whether nodes can compute these layers. Else PyTorch's own operations run, and raise errors.
  bool Fits() const {
    if (at::autocast::is_autocast_enabled(at::kXLA)) return false;
    const at::ScalarType dtype = input.scalar_type();
    auto fits = [&](const at::Tensor& tensor) {
      return aten::IsXla(tensor) && tensor.device() == input.device() &&
             tensor.scalar_type() == dtype && !tensor._fw_grad(/*level=*/0).defined();
    };
    if (packed() && !Packing::Fits(input, batch_sizes)) return false;
    if (!at::isFloatingType(dtype) || input.dim() != (packed() ? 2 : 3) || input.numel() == 0 ||
        times() < 2 || num_layers < 1 || !fits(input) ||
        !std::all_of(hidden.begin(), hidden.end(), fits) ||
        !std::all_of(params.begin(), params.end(), fits)) {
      return false;
    }
    if (hidden.size() != (kind == Cell::kLstm ? 2 : 1) || hidden[0].dim() != 3) return false;
    const int64_t h = hidden[0].size(2), directions = this->directions();
    const std::vector<int64_t> state{num_layers * directions, samples(), h};
    for (const at::Tensor& tensor : hidden) {
      if (tensor.sizes() != state) return false;
    }
    if (h == 0 || params.size() != params_each() * num_layers * directions) return false;
    for (size_t i = 0; i < params.size(); i += params_each()) {
      const bool is_first = i < params_each() * directions;
      const int64_t width = is_first ? input.size(-1) : h * directions;
      const int64_t rows = NumGates(kind) * h;
      if (params[i].sizes() != at::IntArrayRef{rows, width} ||
          params[i + 1].sizes() != at::IntArrayRef{rows, h}) {
        return false;
      }
      if (has_biases && (params[i + 2].sizes() != at::IntArrayRef{rows} ||
                         params[i + 3].sizes() != at::IntArrayRef{rows})) {
        return false;
      }
    }
    return true;
  }

  /// The gates of a packed sequence's padding: they keep the state, or bound it.
  at::Tensor Padding(int64_t h) const {
    const double far = input.scalar_type() == at::kHalf ? 3e4 : 1e9;
    at::Tensor padding = at::full({NumGates(kind) * h}, -far, input.options());
    if (NumGates(kind) > 1) padding.narrow(0, h, h).fill_(far);
    return padding;
  }

  /// The output, and the states after the last time step in the order of `hidden`.
  std::vector<at::Tensor> Run() const {
    at::Tensor x = batch_first ? input.transpose(0, 1) : input, padding, ends;
    std::vector<Packing> packing;  // of each direction
    if (packed()) {
      packing.push_back(Packing::Of(batch_sizes, input));
      if (bidirectional) packing.push_back(packing[0].Reversed());
      padding = Padding(hidden[0].size(2));
      ends = packing[0].lengths - 1;
    }
    std::vector<at::Tensor> last_hidden, last_cell;
    for (int64_t layer = 0; layer < num_layers; ++layer) {
      std::vector<at::Tensor> outputs;
      for (int64_t direction = 0; direction < directions(); ++direction) {
        const bool reverse = direction == 1;
        const int64_t index = layer * directions() + direction;
        const at::TensorList weights = params.slice(index * params_each(), params_each());
        const at::Tensor bias =
            has_biases ? weights[3] : at::zeros({weights[1].size(0)}, weights[1].options());
        at::Tensor gates =
            at::linear(x, weights[0], has_biases ? weights[2] : std::optional<at::Tensor>());
        if (packed()) gates = Padded(packing[direction], gates, padding);
        const Sequence sequence{
            gates, weights[1], bias, hidden[0][index],
            kind == Cell::kLstm ? std::optional(hidden[1][index]) : std::nullopt};
        const variable_list made = Differentiable(sequence, kind, reverse && !packed());
        outputs.push_back(packed() ? Packed(packing[direction], made[0]) : made[0]);
        last_hidden.push_back(
            packed() ? at::index(made[0], {ends, at::arange(samples(), ends.options())})
                     : made[0].select(0, reverse ? 0 : made[0].size(0) - 1));
        if (kind == Cell::kLstm) last_cell.push_back(made[1]);
      }
      x = outputs.size() == 1 ? outputs[0] : at::cat(outputs, -1);
      if (dropout != 0 && train && layer + 1 < num_layers) x = at::dropout(x, dropout, true);
    }
    std::vector<at::Tensor> results{batch_first ? x.transpose(0, 1) : x, at::stack(last_hidden)};
    if (kind == Cell::kLstm) results.push_back(at::stack(last_cell));
    return results;
  }
};

using WithoutCell = std::tuple<at::Tensor, at::Tensor>;

template <typename Composite>
WithoutCell RunWithoutCell(const Layers& layers, Composite composite) {
  if (!layers.Fits()) return composite();
  const std::vector<at::Tensor> results = layers.Run();
  return {results[0], results[1]};
}

}  // namespace

namespace autograd {

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_input(const at::Tensor& input,
                                                          at::TensorList hx, at::TensorList params,
                                                          bool has_biases, int64_t num_layers,
                                                          double dropout, bool train,
                                                          bool bidirectional, bool batch_first) {
  const Layers layers{Cell::kLstm, input,   hx,    params,        has_biases,
                      num_layers,  dropout, train, bidirectional, batch_first};
  if (!layers.Fits()) {
    return at::compositeimplicitautograd::lstm(input, hx, params, has_biases, num_layers, dropout,
                                               train, bidirectional, batch_first);
  }
  const std::vector<at::Tensor> results = layers.Run();
  return {results[0], results[1], results[2]};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_data(
    const at::Tensor& data, const at::Tensor& batch_sizes, at::TensorList hx, at::TensorList params,
    bool has_biases, int64_t num_layers, double dropout, bool train, bool bidirectional) {
  const Layers layers{Cell::kLstm,   data,       hx,         params,
                      has_biases,    num_layers, dropout,    train,
                      bidirectional, false,      batch_sizes};
  if (!layers.Fits()) {
    return at::compositeimplicitautograd::lstm(data, batch_sizes, hx, params, has_biases,
                                               num_layers, dropout, train, bidirectional);
  }
  const std::vector<at::Tensor> results = layers.Run();
  return {results[0], results[1], results[2]};
}

#define TORCH_XLA_RECURRENT(op, kind)                                                           \
  WithoutCell op##_input(const at::Tensor& input, const at::Tensor& hx, at::TensorList params,  \
                         bool has_biases, int64_t num_layers, double dropout, bool train,       \
                         bool bidirectional, bool batch_first) {                                \
    return RunWithoutCell({kind, input, hx, params, has_biases, num_layers, dropout, train,     \
                           bidirectional, batch_first},                                         \
                          [&] {                                                                 \
                            return at::compositeimplicitautograd::op(                           \
                                input, hx, params, has_biases, num_layers, dropout, train,      \
                                bidirectional, batch_first);                                    \
                          });                                                                   \
  }                                                                                             \
  WithoutCell op##_data(const at::Tensor& data, const at::Tensor& batch_sizes,                  \
                        const at::Tensor& hx, at::TensorList params, bool has_biases,           \
                        int64_t num_layers, double dropout, bool train, bool bidirectional) {   \
    return RunWithoutCell({kind, data, hx, params, has_biases, num_layers, dropout, train,      \
                           bidirectional, false, batch_sizes},                                  \
                          [&] {                                                                 \
                            return at::compositeimplicitautograd::op(                           \
                                data, batch_sizes, hx, params, has_biases, num_layers, dropout, \
                                train, bidirectional);                                          \
                          });                                                                   \
  }

TORCH_XLA_RECURRENT(gru, Cell::kGru)
TORCH_XLA_RECURRENT(rnn_tanh, Cell::kTanh)
TORCH_XLA_RECURRENT(rnn_relu, Cell::kRelu)
#undef TORCH_XLA_RECURRENT

std::tuple<at::Tensor, at::Tensor> _pack_padded_sequence(const at::Tensor& input,
                                                         const at::Tensor& lengths,
                                                         bool batch_first) {
  const auto fits = [&] {
    if (!aten::IsXla(input) || input.dim() < 2 || input.numel() == 0 || !lengths.is_cpu() ||
        lengths.dim() != 1 || lengths.scalar_type() != at::kLong ||
        lengths.size(0) != input.size(batch_first ? 0 : 1)) {
      return false;
    }
    const auto each = lengths.accessor<int64_t, 1>();
    for (int64_t n = 0; n < each.size(0); ++n) {
      const int64_t most = n > 0 ? each[n - 1] : input.size(batch_first ? 1 : 0);
      if (each[n] < 1 || each[n] > most) return false;
    }
    return true;
  };
  if (!fits())
    return at::compositeexplicitautograd::_pack_padded_sequence(input, lengths, batch_first);
  const auto each = lengths.accessor<int64_t, 1>();
  at::Tensor batch_sizes = at::zeros({each[0]}, at::kLong);
  auto* size = batch_sizes.mutable_data_ptr<int64_t>();
  for (int64_t n = 0; n < each.size(0); ++n) {
    for (int64_t t = 0; t < each[n]; ++t) ++size[t];
  }
  const Packing packing = Packing::Of(batch_sizes, input, input.size(batch_first ? 1 : 0));
  return {Packed(packing, batch_first ? input.transpose(0, 1) : input), batch_sizes};
}

std::tuple<at::Tensor, at::Tensor> _pad_packed_sequence(const at::Tensor& data,
                                                        const at::Tensor& batch_sizes,
                                                        bool batch_first,
                                                        const at::Scalar& padding_value,
                                                        int64_t total_length) {
  if (!Packing::Fits(data, batch_sizes) ||
      (total_length > 0 && total_length < batch_sizes.size(0))) {
    return at::compositeimplicitautograd::_pad_packed_sequence(data, batch_sizes, batch_first,
                                                               padding_value, total_length);
  }
  const Packing packing = Packing::Of(batch_sizes, data, total_length);
  const at::Tensor padded = Padded(packing, data, at::full({}, padding_value, data.options()));
  const at::Tensor samples = at::arange(batch_sizes.const_data_ptr<int64_t>()[0], at::kLong);
  return {batch_first ? padded.transpose(0, 1) : padded,
          batch_sizes.unsqueeze(1).gt(samples).sum(0)};
}

}  // namespace autograd
}  // namespace torch_xla
