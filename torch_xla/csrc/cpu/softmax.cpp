// Softmax along float rows by ATen's kernels, a few rows at a time, and the maxima and sums of
// log-softmax and the gradient of cross entropy by kernels here. XLA would first write
// the operand of each reduction to memory.
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/aten_calls.h"
#include "cpu/calls.h"
#include "cpu/ffi_parts.h"
#include "cpu/float_loops.h"
#include "cpu/float_math.h"
#include "cpu/handlers.h"
#include "cpu/instruction_sets.h"

namespace torch_xla::cpu {
namespace {

using namespace runtime::pjrt;

// ---------------------------------------------------------------- cross entropy

/// The rows x [rows, columns], to each of which `bias` [columns] is added unless it is null.
struct BiasedFloats {
  const float* x;
  const float* bias;
  int64_t columns;
};

/// The inputs of the gradient of cross entropy.
struct CrossEntropyGradient {
  BiasedFloats rows;
  const float *maximum, *log_sum;  // [rows]
  const int64_t* classes;          // [rows]
  const float* grad;               // [rows], of the log-softmax of each row's class
};

template <typename V>
C10_ALWAYS_INLINE V Biased(const BiasedFloats& rows, const float* x, int64_t column) {
  return rows.bias ? Load<V>(x + column) + Load<V>(rows.bias + column) : Load<V>(x + column);
}

template <typename V>
C10_ALWAYS_INLINE V Larger(V a, V b) {
  return a < b ? b : a;
}

template <int kLanes>
C10_ALWAYS_INLINE float Maximum(const BiasedFloats& rows, const float* x) {
  float all[kLanes];
  std::fill_n(all, kLanes, -std::numeric_limits<float>::infinity());
  auto lanes = Load<Lanes<kLanes>>(all);
  ForEach<kLanes>(rows.columns, [&]<typename V>(int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
    if constexpr (std::is_same_v<V, float>) {
      lanes[0] = Larger<float>(lanes[0], Biased<V>(rows, x, i));
    } else {
      lanes = Larger<V>(lanes, Biased<V>(rows, x, i));
    }
  });
  Store(lanes, all);
  return *std::max_element(all, all + kLanes);
}

/// For each row from `begin` to `end`, writes the maximum and the logarithm of the row's sum of
/// exp(x - maximum).
template <int kLanes>
C10_ALWAYS_INLINE void Sums(const BiasedFloats& rows, int64_t begin, int64_t end, float* maximum,
                            float* log_sum) {
  for (int64_t row = begin; row < end; ++row) {
    const float* const x = rows.x + row * rows.columns;
    // If an element is NaN, so is the sum.
    const float largest = maximum[row] = Maximum<kLanes>(rows, x);
    double sum[1] = {};
    Sum<kLanes, 1>(rows.columns, sum, [&](auto& to, int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
      using V = Element<decltype(to)>;
      to[0] += Exp<V>(Biased<V>(rows, x, i) - largest);
    });
    log_sum[row] = static_cast<float>(std::log(sum[0]));
  }
}

/// Writes grad * ((column == class) - softmax(x)) for rows `begin` to `end`.
template <int kLanes>
C10_ALWAYS_INLINE void Gradients(const CrossEntropyGradient& call, int64_t begin, int64_t end,
                                 float* result) {
  const BiasedFloats& rows = call.rows;
  for (int64_t row = begin; row < end; ++row) {
    const float* const x = rows.x + row * rows.columns;
    float* const to = result + row * rows.columns;
    const float grad = call.grad[row], maximum = call.maximum[row], log_sum = call.log_sum[row];
    if (grad == 0 && std::isfinite(maximum) && std::isfinite(log_sum)) {  // an ignored row
      std::fill_n(to, rows.columns, 0.0F);
      continue;
    }
    ForEach<kLanes>(rows.columns, [&]<typename V>(int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
      Store<V>(V{} - Exp<V>(Biased<V>(rows, x, i) - maximum - log_sum) * grad, to + i);
    });
    const int64_t place = call.classes[row];
    if (place >= 0 && place < rows.columns) to[place] += grad;
  }
}

// ---------------------------------------------------------------- the calls

/// Calls work(of) on XLA's threads; of(y) is a part of the rows of `y`, which has the rows of `x`.
template <typename Work>
void ForRows(const XLA_FFI_CallFrame& frame, const at::Tensor& x, const Work& work) {
  RunAtenParts(frame, FfiParts(frame, x.numel() * choices::kFunction, x.size(0)), work);
}

at::Tensor Rows(void* buffer) { return FfiTensor(buffer).flatten(0, -2); }

/// The first operand with `rows` rows, and the optional bias, which comes after `count` operands.
BiasedFloats FloatsOf(const XLA_FFI_CallFrame& frame, int64_t count, int64_t rows) {
  void** const args = frame.args.args;
  const bool has_bias = frame.args.size > count;
  return {.x = FfiData<const float>(args[0]),
          .bias = has_bias ? FfiData<const float>(args[count]) : nullptr,
          .columns = FfiTensor(args[0]).numel() / rows};
}

/// Rows of only -inf, whose softmax is NaN, become zeros.
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

}  // namespace

void RunRowSums(const XLA_FFI_CallFrame& frame) {
  const int64_t count = FfiTensor(frame.rets.rets[0]).numel();
  const BiasedFloats rows = FloatsOf(frame, 1, count);
  InParts(frame, count, rows.columns * choices::kFunction, [&](int64_t begin, int64_t end) {
    ForThisProcessor<&Sums<4>, &Sums<8>, &Sums<16>>()(
        rows, begin, end, FfiData<float>(frame.rets.rets[0]), FfiData<float>(frame.rets.rets[1]));
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
  InParts(frame, count, call.rows.columns * choices::kFunction, [&](int64_t begin, int64_t end) {
    ForThisProcessor<&Gradients<4>, &Gradients<8>, &Gradients<16>>()(
        call, begin, end, FfiData<float>(frame.rets.rets[0]));
  });
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

void RunSoftmaxBackward(const XLA_FFI_CallFrame& frame) {
  const at::Tensor grad = Rows(frame.args.args[0]), y = Rows(frame.args.args[1]);
  const at::Tensor result = Rows(frame.rets.rets[0]);
  ForRows(frame, y, [&](auto of) {
    at::Tensor part = of(result);
    at::_softmax_backward_data_out(part, of(grad), of(y), 1, y.scalar_type());
  });
}

}  // namespace torch_xla::cpu
