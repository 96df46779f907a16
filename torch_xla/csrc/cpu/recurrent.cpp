// LSTM and GRU of float on the device's memory. Samples are independent, so each of XLA's threads
// computes some samples over all time steps, and waits for no other thread. Of oneDNN, ATen has the
// LSTM alone, with its input's products, and training takes no less time with it.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/macros/Macros.h>

#include <algorithm>
#include <cstdint>

#include "cpu/aten_calls.h"
#include "cpu/calls.h"
#include "cpu/ffi_parts.h"
#include "cpu/float_math.h"
#include "cpu/handlers.h"
#include "cpu/instruction_sets.h"
#include "cpu/small_product.h"

namespace torch_xla::cpu {
namespace {

using namespace runtime::pjrt;

// ---- Functions that compilers vectorize, with errors of a few units in the last place. Inlined
// functions must be compiled with the same options, so these use builtins, not library templates.

C10_ALWAYS_INLINE float Sigmoid(float x) { return 1.f / (1.f + Exp(-x)); }

/// Cephes' tanhf.
C10_ALWAYS_INLINE float Tanh(float x) {
  const float a = __builtin_fabsf(x), z = x * x;
  float y = -5.70498872745e-3f;
  y = y * z + 2.06390887954e-2f;
  y = y * z - 5.37397155531e-2f;
  y = y * z + 1.33314422036e-1f;
  y = y * z - 3.33332819422e-1f;
  const float small = y * z * x + x;
  const float large = __builtin_copysignf(1.f - 2.f / (Exp(2.f * a) + 1.f), x);
  return a < 0.625f ? small : (x == x ? large : x);
}

// ---- One sample at one time step; the state has `h` numbers. `products` are those of the state
// before the time step with the weights, without the bias.

using Out = float* __restrict__;
using In = const float* __restrict__;

C10_ALWAYS_INLINE void LstmForward(int64_t h, In gates, In products, In bias, In cell, Out saved,
                                   Out next_cell, Out output) {
  for (int64_t i = 0; i < h; ++i) {
    auto sum = [&](int64_t at)
                   C10_ALWAYS_INLINE_ATTRIBUTE { return gates[at] + (products[at] + bias[at]); };
    const float in = Sigmoid(sum(i)), forget = Sigmoid(sum(h + i));
    const float update = Tanh(sum(2 * h + i)), out = Sigmoid(sum(3 * h + i));
    const float next = forget * cell[i] + in * update;
    saved[i] = in;
    saved[h + i] = forget;
    saved[2 * h + i] = update;
    saved[3 * h + i] = out;
    next_cell[i] = next;
    output[i] = out * Tanh(next);
  }
}

C10_ALWAYS_INLINE void GruForward(int64_t h, In gates, In products, In bias, In before, Out saved,
                                  Out output) {
  for (int64_t i = 0; i < h; ++i) {
    auto sum = [&](int64_t at)
                   C10_ALWAYS_INLINE_ATTRIBUTE { return gates[at] + (products[at] + bias[at]); };
    const float reset = Sigmoid(sum(i)), update = Sigmoid(sum(h + i));
    const float product = products[2 * h + i] + bias[2 * h + i];
    const float next = Tanh(gates[2 * h + i] + reset * product);
    saved[i] = reset;
    saved[h + i] = update;
    saved[2 * h + i] = next;
    saved[3 * h + i] = product;
    output[i] = (before[i] - next) * update + next;
  }
}

/// `reached` is the gradient of the state after this time step that came through the products of
/// the next one. `grad_cell` is the gradient of the cells after this time step, and becomes the
/// gradient of those before it.
C10_ALWAYS_INLINE void LstmBackward(int64_t h, In saved, In cell, In next_cell, In of_output,
                                    In reached, Out grad_cell, Out grad_gates) {
  for (int64_t i = 0; i < h; ++i) {
    const float in = saved[i], forget = saved[h + i], update = saved[2 * h + i];
    const float out = saved[3 * h + i], squashed = Tanh(next_cell[i]);
    const float grad = reached[i] + of_output[i];
    const float of_cell = grad_cell[i] + grad * out * (1.f - squashed * squashed);
    grad_gates[i] = of_cell * update * in * (1.f - in);
    grad_gates[h + i] = of_cell * cell[i] * forget * (1.f - forget);
    grad_gates[2 * h + i] = of_cell * in * (1.f - update * update);
    grad_gates[3 * h + i] = grad * squashed * out * (1.f - out);
    grad_cell[i] = of_cell * forget;
  }
}

/// `grad` is the part of the state's gradient that did not come through the products of the next
/// time step, and becomes the same part of the previous state's gradient.
C10_ALWAYS_INLINE void GruBackward(int64_t h, In saved, In before, In of_output, In reached,
                                   Out grad, Out grad_gates, Out grad_products) {
  for (int64_t i = 0; i < h; ++i) {
    const float reset = saved[i], update = saved[h + i], next = saved[2 * h + i];
    const float all = grad[i] + reached[i] + of_output[i];
    const float of_next = all * (1.f - update) * (1.f - next * next);
    const float of_update = all * (before[i] - next) * update * (1.f - update);
    const float of_reset = of_next * saved[3 * h + i] * reset * (1.f - reset);
    grad_gates[i] = grad_products[i] = of_reset;
    grad_gates[h + i] = grad_products[h + i] = of_update;
    grad_gates[2 * h + i] = of_next;
    grad_products[2 * h + i] = of_next * reset;
    grad[i] = all * update;
  }
}

// ---- Some samples over all times

float* Row(const at::Tensor& matrix, int64_t row) {
  return matrix.mutable_data_ptr<float>() + row * matrix.stride(0);
}

/// Transposed weights [columns, terms], packed once for the products of all time steps.
class Weights {
 public:
  Weights(const XLA_FFI_CallFrame& frame, const at::Tensor& weights)
      : columns_(InPanels(weights.size(0)) * PanelWidth()), terms_(weights.size(1)) {
    const AtenCalls calls;
    // Packing reads whole vectors of whole panels.
    const int64_t width = InVectors(terms_) * ProductLanes();
    const at::Tensor padded = at::zeros({columns_, width}, weights.options());
    padded.narrow(0, 0, weights.size(0)).narrow(1, 0, terms_).copy_(weights);
    panels_ = Scratch(columns_ * terms_);
    const int64_t cost = PanelWidth() * terms_ * choices::kMoved;
    InParts(frame, InPanels(columns_), cost, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        PackPanel(Row(padded, i * PanelWidth()), width, terms_,
                  panels_.get() + i * PanelWidth() * terms_);
      }
    });
  }

  /// Zeros where the products of `rows` rows have room. Columns are added to fill the last panel.
  at::Tensor Products(int64_t rows, const at::TensorOptions& options) const {
    return at::zeros({rows, columns_}, options);
  }
  /// An element of a product is one sum in the order of the terms, whatever the number of rows is.
  void Multiply(const at::Tensor& rows, const at::Tensor& products) const {
    cpu::Multiply({.a = Row(rows, 0),
                   .a_row = rows.stride(0),
                   .a_term = 1,
                   .b = panels_.get(),
                   .b_term = PanelWidth(),
                   .c = Row(products, 0),
                   .c_row = columns_,
                   .rows = rows.size(0),
                   .columns = columns_,
                   .terms = terms_,
                   .b_panel = PanelWidth() * terms_});
  }

 private:
  int64_t columns_, terms_;
  Floats panels_;
};

/// The operands and results of a call; it can take those of some samples.
struct Call {
  explicit Call(const XLA_FFI_CallFrame& frame) : frame(frame) {
    const auto call = CallOf<RecurrentCall>(frame);
    is_lstm = call.is_lstm != 0;
    reverse = call.reverse != 0;
  }
  at::Tensor Argument(int64_t i) const { return FfiTensor(frame.args.args[i]); }
  at::Tensor Result(int64_t i) const { return FfiTensor(frame.rets.rets[i]); }

  /// Calls work(some) for each thread's samples: `some` takes them of a tensor [samples, *], or of
  /// a time step of a tensor [times, samples, *].
  template <typename Work>
  void ForSamples(int64_t samples, int64_t products_each, const Work& work) const {
    const int64_t cost = samples * products_each * choices::kProduct;
    const int64_t most = std::max<int64_t>(samples / choices::kSamplesOfPart, 1);
    RunAtenParts(frame, FfiParts(frame, cost, most), [&](const AtenPart& part) {
      work([&](const at::Tensor& x, int64_t time = -1) {
        return part(time < 0 ? x : x.select(0, time));
      });
    });
  }

  const XLA_FFI_CallFrame& frame;
  bool is_lstm;  // or a GRU
  bool reverse;
};

}  // namespace

void RunRecurrent(const XLA_FFI_CallFrame& frame) {
  const Call call(frame);
  const at::Tensor gates = call.Argument(0), bias = call.Argument(2), hidden = call.Argument(3);
  const at::Tensor output = call.Result(0);
  const int64_t times = output.size(0), h = output.size(2), width = gates.size(2);
  // The values kept for the gradient come after the output and an LSTM's last cells.
  const int64_t first_kept = call.is_lstm ? 2 : 1;
  const bool keeps = frame.rets.size > first_kept;
  const Weights weights(frame, call.Argument(1));
  const float* bias_row = bias.const_data_ptr<float>();
  call.ForSamples(output.size(1), times * h * width, [&](const auto& some) {
    at::Tensor before = some(hidden), kept, cells, last, spare;
    const int64_t count = before.size(0);
    const at::Tensor products = weights.Products(count, gates.options());
    if (!keeps) kept = at::empty({count, 4 * h}, gates.options());
    if (call.is_lstm) {
      cells = some(call.Argument(4));
      last = some(call.Result(1));
      spare = at::empty_like(last);
    }
    for (int64_t step = 0; step < times; ++step) {
      const int64_t t = call.reverse ? times - 1 - step : step;
      const at::Tensor now = some(gates, t), out = some(output, t);
      if (keeps) kept = some(call.Result(first_kept), t);
      weights.Multiply(before, products);
      if (call.is_lstm) {
        const bool is_spare = (times - step) % 2 == 0;  // `last` comes last
        const at::Tensor next = keeps ? some(call.Result(3), t) : is_spare ? spare : last;
        for (int64_t i = 0; i < count; ++i) {
          ForThisProcessor<&LstmForward>()(h, Row(now, i), Row(products, i), bias_row,
                                           Row(cells, i), Row(kept, i), Row(next, i), Row(out, i));
        }
        cells = next;
      } else {
        for (int64_t i = 0; i < count; ++i) {
          ForThisProcessor<&GruForward>()(h, Row(now, i), Row(products, i), bias_row,
                                          Row(before, i), Row(kept, i), Row(out, i));
        }
      }
      before = out;
    }
    if (call.is_lstm && keeps) last.copy_(cells);
  });
}

void RunRecurrentBackward(const XLA_FFI_CallFrame& frame) {
  const Call call(frame);
  const at::Tensor grad_output = call.Argument(0), weight = call.Argument(1);
  const at::Tensor hidden = call.Argument(2), output = call.Argument(3), gates = call.Argument(4);
  const at::Tensor grad_gates = call.Result(0), grad_hidden = call.Result(1);
  const int64_t times = output.size(0), h = output.size(2), width = weight.size(0);
  const Weights weights(frame, weight.t());
  call.ForSamples(output.size(1), 2 * times * h * width, [&](const auto& some) {
    const at::Tensor grad = some(grad_hidden).zero_();
    const int64_t count = grad.size(0);
    const at::Tensor reached = weights.Products(count, grad.options());
    at::Tensor cells, grad_cell;
    if (call.is_lstm) {
      cells = some(call.Argument(5), call.reverse ? 0 : times - 1);
      grad_cell = some(call.Result(2)).copy_(some(call.Argument(7)));
    }
    for (int64_t step = times - 1; step >= 0; --step) {
      const int64_t t = call.reverse ? times - 1 - step : step;
      const int64_t earlier = call.reverse ? t + 1 : t - 1;
      const at::Tensor of_output = some(grad_output, t), of_gates = some(grad_gates, t);
      const at::Tensor kept = some(gates, t);
      at::Tensor of_products = of_gates;
      if (call.is_lstm) {
        const at::Tensor before =
            step > 0 ? some(call.Argument(5), earlier) : some(call.Argument(6));
        for (int64_t i = 0; i < count; ++i) {
          ForThisProcessor<&LstmBackward>()(h, Row(kept, i), Row(before, i), Row(cells, i),
                                            Row(of_output, i), Row(reached, i), Row(grad_cell, i),
                                            Row(of_gates, i));
        }
        cells = before;
      } else {
        const at::Tensor before = step > 0 ? some(output, earlier) : some(hidden);
        of_products = some(call.Result(2), t);
        for (int64_t i = 0; i < count; ++i) {
          ForThisProcessor<&GruBackward>()(h, Row(kept, i), Row(before, i), Row(of_output, i),
                                           Row(reached, i), Row(grad, i), Row(of_gates, i),
                                           Row(of_products, i));
        }
      }
      weights.Multiply(of_products, reached);
    }
    grad.add_(reached.narrow(1, 0, h));
  });
}

}  // namespace torch_xla::cpu
