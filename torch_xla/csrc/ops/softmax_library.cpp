#include "ops/softmax_library.h"

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
#include "cpu/cross_entropy_kernel.h"
#include "cpu/ffi_parts.h"
#include "cpu/ffi_threads.h"
#include "lowering/kernel_choice.h"
#include "lowering/library_call.h"
#include "stablehlo/text.h"
#include "tensor/cpu_handler.h"

namespace torch_xla::lowering {

using namespace cpu;

namespace {

using namespace runtime::pjrt;

constexpr const char* kSumsTarget = "torch_xla.cpu_row_sums";
constexpr const char* kCrossEntropyBackwardTarget = "torch_xla.cpu_cross_entropy_backward";
constexpr const char* kLogTarget = "torch_xla.cpu_log_softmax";
constexpr const char* kLogBackwardTarget = "torch_xla.cpu_log_softmax_backward";
constexpr const char* kTarget = "torch_xla.cpu_softmax";
constexpr const char* kBackwardTarget = "torch_xla.cpu_softmax_backward";

/// Fewer elements are not worth a second thread.
constexpr int64_t kLeast = 1 << 14;

/// Calls work(of) on XLA's threads; of(y) is a part of the rows of `y`, which has as many as `x`.
template <typename Work>
void ForRows(const XLA_FFI_CallFrame& frame, const at::Tensor& x, const Work& work) {
  const int64_t parts = cpu::FfiParts(frame, x.numel(), kLeast, x.size(0));
  cpu::RunOnFfiThreads(frame, parts, [&](int64_t i) {
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

void HandleSums(const XLA_FFI_CallFrame& frame) {
  const int64_t count = FfiTensor(frame.rets.rets[0]).numel();
  const BiasedFloats rows = FloatsOf(frame, 1, count);
  InParts(frame, count, rows.columns, kLeast, [&](int64_t, int64_t begin, int64_t end) {
    SumExponentials(rows, begin, end, FfiData<float>(frame.rets.rets[0]),
                    FfiData<float>(frame.rets.rets[1]));
  });
}

void HandleCrossEntropyBackward(const XLA_FFI_CallFrame& frame) {
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

void Handle(const XLA_FFI_CallFrame& frame) {
  const bool safe = FfiAttributes(frame.attrs).List("safe")[0] != 0;
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

void HandleLog(const XLA_FFI_CallFrame& frame) {
  const at::Tensor x = Rows(frame.args.args[0]), y = Rows(frame.rets.rets[0]);
  ForRows(frame, x, [&](auto of) { LogSoftmax(of(x), of(y)); });
}

template <auto kCompute>
void HandleBackward(const XLA_FFI_CallFrame& frame) {
  const at::Tensor grad = Rows(frame.args.args[0]), y = Rows(frame.args.args[1]);
  const at::Tensor result = Rows(frame.rets.rets[0]);
  ForRows(frame, y, [&](auto of) { kCompute(of(grad), of(y), of(result)); });
}

[[maybe_unused]] const bool registered =
    lazy::RegisterWithClient<kSumsTarget, cpu::Handler<HandleSums>>() &&
    lazy::RegisterWithClient<kCrossEntropyBackwardTarget,
                             cpu::Handler<HandleCrossEntropyBackward>>() &&
    lazy::RegisterWithClient<kLogTarget, cpu::Handler<HandleLog>>() &&
    lazy::RegisterWithClient<kLogBackwardTarget,
                             cpu::Handler<HandleBackward<&LogSoftmaxBackward>>>() &&
    lazy::RegisterWithClient<kTarget, cpu::Handler<Handle>>() &&
    lazy::RegisterWithClient<kBackwardTarget, cpu::Handler<HandleBackward<&SoftmaxBackward>>>();

bool Calls(const LoweringContext& cx, const char* operation, Value x, const Dims& dims) {
  const bool is_half = x.element() == ElementType::kBF16;
  if (!is_half && x.element() != ElementType::kF32) return false;
  if (x.rank() < 2 || dims != Dims{x.rank() - 1}) return false;
  constexpr int64_t kLong = 1000, kMany = 1 << 20, kSome = 1 << 13;
  const int64_t elements = x.type().num_elements();
  return ChooseKernel(cx, operation,
                      {is_half ? "bf16" : "f32", x.dim(-1) >= kLong ? "long" : "short",
                       elements >= kMany   ? "many"
                       : elements >= kSome ? "some"
                                           : "few"},
                      {Kernel::kStableHlo, Kernel::kLibrary}) == Kernel::kLibrary;
}

}  // namespace

bool CallsRowSums(const LoweringContext& cx, Value x, const Dims& dims) {
  return Calls(cx, "log_softmax", x, dims);
}

RowSums CallRowSums(const BiasedRows& rows) {
  std::vector<Value> operands{rows.x};
  if (rows.bias) operands.push_back(*rows.bias);
  Dims sums = rows.x.dims();
  sums.pop_back();
  const stablehlo::Type type(rows.x.element(), sums);
  const auto results = CallLibrary(kSumsTarget, operands, {type, type});
  return {results[0], results[1]};
}

Value CallCrossEntropyBackward(const BiasedRows& rows, const RowSums& sums, Value classes,
                               Value grad) {
  std::vector<Value> operands{rows.x, sums.maximum, sums.log_sum, classes, grad};
  if (rows.bias) operands.push_back(*rows.bias);
  return CallLibrary(kCrossEntropyBackwardTarget, operands, {rows.x.type()})[0];
}

bool CallsCrossEntropy(const LoweringContext& cx, Value x, const Dims& dims) {
  return x.element() == ElementType::kF32 && x.type().num_elements() > 0 &&
         Calls(cx, "cross_entropy", x, dims);
}

std::optional<Value> CallLogSoftmax(const LoweringContext& cx, Value x, const Dims& dims) {
  if (!CallsCrossEntropy(cx, x, dims)) return std::nullopt;
  return CallLibrary(kLogTarget, {x}, {x.type()})[0];
}

std::optional<Value> CallLogSoftmaxBackward(const LoweringContext& cx, Value grad, Value output,
                                            const Dims& dims) {
  if (grad.element() != output.element() || !CallsCrossEntropy(cx, output, dims)) {
    return std::nullopt;
  }
  return CallLibrary(kLogBackwardTarget, {grad, output}, {output.type()})[0];
}

std::optional<Value> CallSoftmax(const LoweringContext& cx, Value x, const Dims& dims, bool safe) {
  if (!Calls(cx, "softmax", x, dims)) return std::nullopt;
  return CallLibrary(kTarget, {x}, {x.type()}, "safe = " + stablehlo::I64Array(Dims{safe}))[0];
}

std::optional<Value> CallSoftmaxBackward(const LoweringContext& cx, Value grad, Value output,
                                         const Dims& dims) {
  if (grad.element() != output.element() || !Calls(cx, "softmax", output, dims)) {
    return std::nullopt;
  }
  return CallLibrary(kBackwardTarget, {grad, output}, {output.type()})[0];
}

}  // namespace torch_xla::lowering
