// LSTM and GRU of float on the device's memory. Samples are independent, so each of XLA's threads
// computes some samples over all time steps, and waits for no other thread.
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/macros/Macros.h>

#include <algorithm>
#include <cstdint>

#include "cpu/aten_calls.h"
#include "cpu/calls.h"
#include "cpu/choices.h"
#include "cpu/few_rows.h"
#include "cpu/float_math.h"
#include "cpu/handlers.h"
#include "cpu/instruction_sets.h"

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

// ---- One sample at one time step; the state has `h` numbers.

using Out = float* __restrict__;
using In = const float* __restrict__;

C10_ALWAYS_INLINE void LstmForward(int64_t h, Out gates, In cell, Out next_cell, Out output) {
  for (int64_t i = 0; i < h; ++i) {
    const float in = Sigmoid(gates[i]), forget = Sigmoid(gates[h + i]);
    const float update = Tanh(gates[2 * h + i]), out = Sigmoid(gates[3 * h + i]);
    const float next = forget * cell[i] + in * update;
    gates[i] = in;
    gates[h + i] = forget;
    gates[2 * h + i] = update;
    gates[3 * h + i] = out;
    next_cell[i] = next;
    output[i] = out * Tanh(next);
  }
}

C10_ALWAYS_INLINE void GruForward(int64_t h, In gates, In products, In before, Out saved,
                                  Out output) {
  for (int64_t i = 0; i < h; ++i) {
    const float reset = Sigmoid(gates[i] + products[i]);
    const float update = Sigmoid(gates[h + i] + products[h + i]);
    const float product = products[2 * h + i];
    const float next = Tanh(gates[2 * h + i] + reset * product);
    saved[i] = reset;
    saved[h + i] = update;
    saved[2 * h + i] = next;
    saved[3 * h + i] = product;
    output[i] = (before[i] - next) * update + next;
  }
}

/// `grad` and `grad_cell` are the gradients of the state after this time step; `grad_cell` becomes
/// the gradient of the cells before it.
C10_ALWAYS_INLINE void LstmBackward(int64_t h, In saved, In cell, In next_cell, In grad,
                                    Out grad_cell, Out grad_gates) {
  for (int64_t i = 0; i < h; ++i) {
    const float in = saved[i], forget = saved[h + i], update = saved[2 * h + i];
    const float out = saved[3 * h + i], squashed = Tanh(next_cell[i]);
    const float of_cell = grad_cell[i] + grad[i] * out * (1.f - squashed * squashed);
    grad_gates[i] = of_cell * update * in * (1.f - in);
    grad_gates[h + i] = of_cell * cell[i] * forget * (1.f - forget);
    grad_gates[2 * h + i] = of_cell * in * (1.f - update * update);
    grad_gates[3 * h + i] = grad[i] * squashed * out * (1.f - out);
    grad_cell[i] = of_cell * forget;
  }
}

/// `grad` becomes the part of the previous state's gradient that does not come through its
/// products.
C10_ALWAYS_INLINE void GruBackward(int64_t h, In saved, In before, Out grad, Out grad_gates,
                                   Out grad_products) {
  for (int64_t i = 0; i < h; ++i) {
    const float reset = saved[i], update = saved[h + i], next = saved[2 * h + i];
    const float of_next = grad[i] * (1.f - update) * (1.f - next * next);
    const float of_update = grad[i] * (before[i] - next) * update * (1.f - update);
    const float of_reset = of_next * saved[3 * h + i] * reset * (1.f - reset);
    grad_gates[i] = grad_products[i] = of_reset;
    grad_gates[h + i] = grad_products[h + i] = of_update;
    grad_gates[2 * h + i] = of_next;
    grad_products[2 * h + i] = of_next * reset;
    grad[i] *= update;
  }
}

C10_ALWAYS_INLINE void AddTo(int64_t n, Out sum, In x) {
  for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
}

C10_ALWAYS_INLINE void Sum(int64_t n, Out sum, In x, In y) {
  for (int64_t i = 0; i < n; ++i) sum[i] = x[i] + y[i];
}

// ---- Some samples over all times

float* Row(const at::Tensor& matrix, int64_t row) {
  return matrix.mutable_data_ptr<float>() + row * matrix.stride(0);
}

/// out (+)= rows times transposed weights.
void Product(at::Tensor out, const at::Tensor& rows, const at::Tensor& weights, bool accumulate) {
  if (rows.size(0) > choices::kFewRows) {
    at::addmm_out(out, out, rows, weights.t(), /*beta=*/accumulate);
    return;
  }
  const FewRows<float> product{.rows = rows.const_data_ptr<float>(),
                               .weights = weights.const_data_ptr<float>(),
                               .out = out.mutable_data_ptr<float>(),
                               .m = rows.size(0),
                               .n = weights.size(0),
                               .k = rows.size(1),
                               .out_stride = out.stride(0),
                               .accumulate = accumulate};
  product.Run(0, product.n);
}

/// The operands and results of a call; it can take those of some samples.
struct Call {
  explicit Call(const XLA_FFI_CallFrame& frame) : frame(frame) {
    const auto call = CallOf<RecurrentCall>(frame);
    is_lstm = call.is_lstm != 0;
    reverse = call.reverse != 0;
  }
  at::Tensor Argument(int64_t i) const { return FfiTensor(frame.args.args[i]); }
  at::Tensor Result(int64_t i) const { return FfiTensor(frame.rets.rets[i]); }

  /// Calls work(from, count) for each thread's samples.
  template <typename Work>
  void ForSamples(int64_t samples, int64_t products_each, const Work& work) const {
    // Products with other numbers of samples differ in their last bits, so the parts must not
    // depend on the number of threads.
    const int64_t most = std::max(std::min(samples / choices::kSamplesOfPart, choices::kFullParts),
                                  samples / choices::kSamplesOfFullPart);
    const int64_t parts = PartsWorthAThread(samples * products_each * choices::kProduct, most);
    RunAtenParts(frame, parts, [&](const AtenPart& part) {
      const int64_t from = samples * part.index / parts;
      work(from, samples * (part.index + 1) / parts - from);
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
  const at::Tensor weight = call.Argument(1);
  const float* bias_row = bias.const_data_ptr<float>();
  call.ForSamples(output.size(1), times * h * width, [&](int64_t from, int64_t count) {
    auto some = [&](const at::Tensor& x) { return x.narrow(0, from, count); };
    auto at_time = [&](const at::Tensor& x, int64_t t) { return some(x.select(0, t)); };
    at::Tensor before = some(hidden), kept, cells, last, spare, products;
    if (!keeps) kept = at::empty({count, 4 * h}, gates.options());
    if (call.is_lstm) {
      cells = some(call.Argument(4));
      last = some(call.Result(1));
      spare = at::empty_like(last);
    } else {
      products = at::empty({count, width}, gates.options());
    }
    for (int64_t step = 0; step < times; ++step) {
      const int64_t t = call.reverse ? times - 1 - step : step;
      const at::Tensor now = at_time(gates, t), out = at_time(output, t);
      if (keeps) kept = at_time(call.Result(first_kept), t);
      const at::Tensor& sums = call.is_lstm ? kept : products;
      for (int64_t i = 0; i < count; ++i) {
        if (call.is_lstm) {
          ForThisProcessor<&Sum>()(width, Row(sums, i), Row(now, i), bias_row);
        } else {
          std::copy_n(bias_row, width, Row(sums, i));
        }
      }
      Product(sums, before, weight, /*accumulate=*/true);
      if (call.is_lstm) {
        const bool is_spare = (times - step) % 2 == 0;  // `last` comes last
        const at::Tensor next = keeps ? at_time(call.Result(3), t) : is_spare ? spare : last;
        for (int64_t i = 0; i < count; ++i)
          ForThisProcessor<&LstmForward>()(h, Row(kept, i), Row(cells, i), Row(next, i),
                                           Row(out, i));
        cells = next;
      } else {
        for (int64_t i = 0; i < count; ++i)
          ForThisProcessor<&GruForward>()(h, Row(now, i), Row(products, i), Row(before, i),
                                          Row(kept, i), Row(out, i));
      }
      before = out;
    }
    if (call.is_lstm && keeps) last.copy_(cells);
  });
}

void RunRecurrentBackward(const XLA_FFI_CallFrame& frame) {
  const Call call(frame);
  const at::Tensor grad_output = call.Argument(0), weight = call.Argument(1).t().contiguous();
  const at::Tensor hidden = call.Argument(2), output = call.Argument(3), gates = call.Argument(4);
  const at::Tensor grad_gates = call.Result(0), grad_hidden = call.Result(1);
  const int64_t times = output.size(0), h = output.size(2), width = weight.size(1);
  call.ForSamples(output.size(1), 2 * times * h * width, [&](int64_t from, int64_t count) {
    auto some = [&](const at::Tensor& x) { return x.narrow(0, from, count); };
    auto at_time = [&](const at::Tensor& x, int64_t t) { return some(x.select(0, t)); };
    // The gradient of the state after the current time step.
    at::Tensor grad = some(grad_hidden).zero_();
    at::Tensor cells, cells_before, grad_cell;
    if (call.is_lstm) {
      cells = at_time(call.Argument(5), call.reverse ? 0 : times - 1);
      grad_cell = some(call.Result(2)).copy_(some(call.Argument(7)));
    }
    for (int64_t step = times - 1; step >= 0; --step) {
      const int64_t t = call.reverse ? times - 1 - step : step;
      const int64_t earlier = call.reverse ? t + 1 : t - 1;
      const at::Tensor of_output = at_time(grad_output, t), of_gates = at_time(grad_gates, t);
      const at::Tensor kept = at_time(gates, t);
      for (int64_t i = 0; i < count; ++i)
        ForThisProcessor<&AddTo>()(h, Row(grad, i), Row(of_output, i));
      if (call.is_lstm) {
        cells_before = step > 0 ? at_time(call.Argument(5), earlier) : some(call.Argument(6));
        for (int64_t i = 0; i < count; ++i) {
          ForThisProcessor<&LstmBackward>()(h, Row(kept, i), Row(cells_before, i), Row(cells, i),
                                            Row(grad, i), Row(grad_cell, i), Row(of_gates, i));
        }
        Product(grad, of_gates, weight, /*accumulate=*/false);
        cells = cells_before;
      } else {
        const at::Tensor before = step > 0 ? at_time(output, earlier) : some(hidden);
        const at::Tensor of_products = at_time(call.Result(2), t);
        for (int64_t i = 0; i < count; ++i) {
          ForThisProcessor<&GruBackward>()(h, Row(kept, i), Row(before, i), Row(grad, i),
                                           Row(of_gates, i), Row(of_products, i));
        }
        Product(grad, of_products, weight, /*accumulate=*/true);
      }
    }
  });
}

}  // namespace torch_xla::cpu
