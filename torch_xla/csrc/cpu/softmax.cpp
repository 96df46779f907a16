// Softmax and log-softmax along rows of float by ATen's kernels on a few rows at a time, or what
// log-softmax subtracts and cross entropy's gradient by ours: XLA writes all that it reduces to
// memory first.
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "cpu/aten_calls.h"
#include "cpu/calls.h"
#include "cpu/cross_entropy_kernel.h"
#include "cpu/ffi_parts.h"
#include "cpu/ffi_threads.h"
#include "cpu/handlers.h"

namespace torch_xla::cpu {
namespace {

using namespace runtime::pjrt;

/// Fewer elements are not worth a second thread.
constexpr int64_t kLeast = 1 << 14;

/// Calls work(of) on XLA's threads; of(y) is a part of the rows of `y`, which has as many as `x`.
template <typename Work>
void ForRows(const XLA_FFI_CallFrame& frame, const at::Tensor& x, const Work& work) {
  const int64_t parts = FfiParts(frame, x.numel(), kLeast, x.size(0));
  RunOnFfiThreads(frame, parts, [&](int64_t i) {
    const AtenCalls calls;
    work([&](const at::Tensor& y) { return Part(y, 0, i, parts); });
  });
}

at::Tensor Rows(void* buffer) { return FfiTensor(buffer).flatten(0, -2); }

/// The first operand, of so many rows, with the bias behind the `count` operands, if there is one.
BiasedFloats FloatsOf(const XLA_FFI_CallFrame& frame, int64_t count, int64_t rows) {
  void** const args = frame.args.args;
  const bool has_bias = frame.args.size > count;
  return {.x = FfiData<const float>(args[0]),
          .bias = has_bias ? FfiData<const float>(args[count]) : nullptr,
          .columns = FfiTensor(args[0]).numel() / rows};
}

/// Rows of nothing but -inf, whose softmax is NaN throughout, become zeros.
template <typename T>
void ClearMasked(const at::Tensor& x, const at::Tensor& y) {
  const int64_t columns = x.size(1);
  for (int64_t i = 0; i < x.size(0); ++i) {
    const T* from = x.const_data_ptr<T>() + i * columns;
    T* to = y.mutable_data_ptr<T>() + i * columns;
    if (!std::isnan(static_cast<float>(*to))) continue;
    constexpr float kMasked = -std::numeric_limits<float>::infinity();
    if (std::all_of(from, from + columns, [](T value) { return value == kMasked; })) {
      std::fill_n(to, columns, T(0));
    }
  }
}

/// ATen's kernels of log-softmax take rows one by one, 80 ns each: of fewer columns it is faster to
/// take the exponentials of all at once.
constexpr int64_t kFewColumns = 32;

void LogSoftmax(const at::Tensor& x, at::Tensor y) {
  const int64_t rows = x.size(0), columns = x.size(1);
  if (columns >= kFewColumns) {
    at::_log_softmax_out(y, x, 1, /*half_to_float=*/false);
    return;
  }
  const auto* from = x.const_data_ptr<float>();
  auto* const to = y.mutable_data_ptr<float>();
  for (int64_t i = 0; i < rows * columns; i += columns) {
    const float largest = *std::max_element(from + i, from + i + columns);
    for (int64_t k = i; k < i + columns; ++k) to[k] = from[k] - largest;
  }
  const at::Tensor terms = y.exp();
  const auto* term = terms.const_data_ptr<float>();
  for (int64_t i = 0; i < rows * columns; i += columns) {
    const float log_sum = std::log(std::accumulate(term + i, term + i + columns, 0.0F));
    for (int64_t k = i; k < i + columns; ++k) to[k] -= log_sum;
  }
}

void LogSoftmaxBackward(const at::Tensor& grad, const at::Tensor& y, at::Tensor result) {
  const int64_t rows = y.size(0), columns = y.size(1);
  if (columns >= kFewColumns) {
    at::_log_softmax_backward_data_out(result, grad, y, 1, y.scalar_type());
    return;
  }
  at::exp_out(result, y);
  const auto* from = grad.const_data_ptr<float>();
  auto* const to = result.mutable_data_ptr<float>();
  for (int64_t i = 0; i < rows * columns; i += columns) {
    const float sum = std::accumulate(from + i, from + i + columns, 0.0F);
    for (int64_t k = i; k < i + columns; ++k) to[k] = from[k] - to[k] * sum;
  }
}

void SoftmaxBackward(const at::Tensor& grad, const at::Tensor& y, at::Tensor result) {
  at::_softmax_backward_data_out(result, grad, y, 1, y.scalar_type());
}

template <typename Compute>
void Backward(const XLA_FFI_CallFrame& frame, const Compute& compute) {
  const at::Tensor grad = Rows(frame.args.args[0]), y = Rows(frame.args.args[1]);
  const at::Tensor result = Rows(frame.rets.rets[0]);
  ForRows(frame, y, [&](auto of) { compute(of(grad), of(y), of(result)); });
}

}  // namespace

void RunRowSums(const XLA_FFI_CallFrame& frame) {
  const int64_t count = FfiTensor(frame.rets.rets[0]).numel();
  const BiasedFloats rows = FloatsOf(frame, 1, count);
  InParts(frame, count, rows.columns, kLeast, [&](int64_t, int64_t begin, int64_t end) {
    SumExponentials(rows, begin, end, FfiData<float>(frame.rets.rets[0]),
                    FfiData<float>(frame.rets.rets[1]));
  });
}

void RunCrossEntropyBackward(const XLA_FFI_CallFrame& frame) {
  void** const args = frame.args.args;
  const int64_t count = FfiTensor(args[1]).numel();
  const CrossEntropyGradient call{.rows = FloatsOf(frame, 5, count),
                                  .maximum = FfiData<const float>(args[1]),
                                  .log_sum = FfiData<const float>(args[2]),
                                  .classes = FfiData<const int64_t>(args[3]),
                                  .grad = FfiData<const float>(args[4])};
  InParts(frame, count, call.rows.columns, kLeast, [&](int64_t, int64_t begin, int64_t end) {
    WriteGradient(call, begin, end, FfiData<float>(frame.rets.rets[0]));
  });
}

void RunLogSoftmax(const XLA_FFI_CallFrame& frame) {
  const at::Tensor x = Rows(frame.args.args[0]), y = Rows(frame.rets.rets[0]);
  ForRows(frame, x, [&](auto of) { LogSoftmax(of(x), of(y)); });
}

void RunSoftmax(const XLA_FFI_CallFrame& frame) {
  const bool safe = CallOf<SoftmaxCall>(frame).safe != 0;
  const at::Tensor x = Rows(frame.args.args[0]), y = Rows(frame.rets.rets[0]);
  ForRows(frame, x, [&](auto of) {
    const at::Tensor given = of(x);
    at::Tensor part = of(y);
    at::_softmax_out(part, given, 1, /*half_to_float=*/false);
    if (!safe) return;
    x.scalar_type() == at::kFloat ? ClearMasked<float>(given, part)
                                  : ClearMasked<at::BFloat16>(given, part);
  });
}

void RunLogSoftmaxBackward(const XLA_FFI_CallFrame& frame) { Backward(frame, LogSoftmaxBackward); }

void RunSoftmaxBackward(const XLA_FFI_CallFrame& frame) { Backward(frame, SoftmaxBackward); }

}  // namespace torch_xla::cpu
