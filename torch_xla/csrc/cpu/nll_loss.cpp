// The negative log likelihood of float rows, and its gradient. XLA:CPU would make four kernels,
// which take longer to compile than a step of a small model takes to run.
#include <ATen/core/Reduction.h>

#include <algorithm>

#include "cpu/calls.h"
#include "cpu/ffi_parts.h"
#include "cpu/ffi_tensor.h"
#include "cpu/handlers.h"

namespace torch_xla::cpu {
namespace {

using namespace runtime::pjrt;

/// The operands that both calls have: `target`, the ignored class, and optional weights at the end.
class Targets {
 public:
  /// `matrix` is the buffer of [rows, columns].
  Targets(const XLA_FFI_CallFrame& frame, void* matrix) {
    const int64_t* const dims = static_cast<XLA_FFI_Buffer*>(matrix)->dims;
    rows_ = dims[0];
    columns_ = dims[1];
    void** const args = frame.args.args;
    classes_ = FfiData<const int64_t>(args[0]);
    ignored_ = *FfiData<const int64_t>(args[1]);
    const auto call = CallOf<NllLossCall>(frame);
    reduction_ = call.reduction;
    if (call.has_weights) weights_ = FfiData<const float>(args[frame.args.size - 1]);
  }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  bool IsKept() const { return reduction_ == at::Reduction::None; }
  bool IsMean() const { return reduction_ == at::Reduction::Mean; }
  bool Counts(int64_t row) const { return classes_[row] != ignored_; }
  int64_t ClassOf(int64_t row) const { return std::clamp<int64_t>(classes_[row], 0, columns_ - 1); }
  float WeightOf(int64_t row) const { return weights_ ? weights_[ClassOf(row)] : 1; }
  /// The index of the row's class in an array of [rows, columns].
  int64_t PlaceOf(int64_t row) const { return row * columns_ + ClassOf(row); }

 private:
  int64_t rows_, columns_;
  const int64_t* classes_;
  int64_t ignored_, reduction_;
  const float* weights_ = nullptr;
};

}  // namespace

void RunNllLoss(const XLA_FFI_CallFrame& frame) {
  const DefaultFloatEnvironment environment;
  const Targets targets(frame, frame.args.args[2]);
  const auto* logarithms = FfiData<const float>(frame.args.args[2]);
  auto* loss = FfiData<float>(frame.rets.rets[0]);
  double sum = 0, total = 0;
  for (int64_t row = 0; row < targets.rows(); ++row) {
    float one = 0;
    if (targets.Counts(row)) {
      const float weight = targets.WeightOf(row);
      one = -logarithms[targets.PlaceOf(row)] * weight;
      total += weight;
    }
    if (targets.IsKept()) loss[row] = one;
    sum += one;
  }
  // PyTorch leaves the total at 0 if it does not reduce.
  *FfiData<float>(frame.rets.rets[1]) = targets.IsKept() ? 0 : static_cast<float>(total);
  if (!targets.IsKept()) *loss = static_cast<float>(targets.IsMean() ? sum / total : sum);
}

void RunNllLossBackward(const XLA_FFI_CallFrame& frame) {
  const Targets targets(frame, frame.rets.rets[0]);
  const auto* grad = FfiData<const float>(frame.args.args[2]);
  const float total = *FfiData<const float>(frame.args.args[3]);
  const float of_all = targets.IsMean() ? *grad / total : *grad;  // if the loss was reduced
  auto* const result = FfiData<float>(frame.rets.rets[0]);
  const int64_t rows = targets.rows(), columns = targets.columns();
  InParts(frame, rows, columns * choices::kFloat, [&](int64_t begin, int64_t end) {
    std::fill(result + begin * columns, result + end * columns, 0.0F);
    for (int64_t row = begin; row < end; ++row) {
      if (!targets.Counts(row)) continue;
      const float own = targets.IsKept() ? grad[row] : of_all;
      result[targets.PlaceOf(row)] = -own * targets.WeightOf(row);
    }
  });
}

}  // namespace torch_xla::cpu
