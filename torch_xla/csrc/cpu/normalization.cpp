// Layer, group and batch normalization of float and bfloat16 (normalization_kernel.h). XLA would
// write the argument of the variance to memory.
#include <algorithm>
#include <array>

#include "cpu/calls.h"
#include "cpu/ffi_parts.h"
#include "cpu/ffi_tensor.h"
#include "cpu/ffi_threads.h"
#include "cpu/handlers.h"
#include "cpu/normalization_kernel.h"

namespace torch_xla::cpu {
namespace {

using namespace runtime::pjrt;

/// The buffers of a call, in order.
class Buffers {
 public:
  Buffers(const XLA_FFI_CallFrame& frame, const NormalizedForm& form) : frame_(frame), form_(form) {
    const int64_t cost = form.num_groups() * form.group_size() * choices::kNormalize;
    num_parts_ = PartsWorthAThread(cost, std::min(choices::kMostParts, form.num_groups()));
  }

  template <typename T = float>
  const T* Argument() {
    return FfiData<const T>(frame_.args.args[argument_++]);
  }
  template <typename T = float>
  const T* ArgumentIf(bool exists) {
    return exists ? Argument<T>() : nullptr;
  }
  template <typename T = float>
  T* ResultIf(bool exists) {
    return exists ? FfiData<T>(frame_.rets.rets[result_++]) : nullptr;
  }

  int64_t num_parts() const { return num_parts_; }
  /// Calls work(part, first group, end of its groups) for each part.
  template <typename Work>
  void InParts(const Work& work) const {
    RunParts(frame_, num_parts_, form_.num_groups(), work);
  }

 private:
  const XLA_FFI_CallFrame& frame_;
  const NormalizedForm& form_;
  int64_t num_parts_;
  int64_t argument_ = 0, result_ = 0;
};

template <typename T>
void Forward(const XLA_FFI_CallFrame& frame) {
  const auto call = CallOf<NormalizationCall>(frame);
  Buffers buffers(frame, call.form);
  const T* input = buffers.Argument<T>();
  const double eps = *buffers.Argument<double>();
  const float *weight = buffers.ArgumentIf(call.has_weight),
              *bias = buffers.ArgumentIf(call.has_bias);
  RunningStatistics running;
  running.mean = buffers.ArgumentIf(call.has_running_mean);
  running.variance = buffers.ArgumentIf(call.has_running_variance);
  if (running.mean || running.variance) running.momentum = *buffers.Argument<double>();
  const bool rectifies = call.rectifies;
  const T* addend = buffers.ArgumentIf<T>(call.has_addend);
  T* output = buffers.ResultIf<T>(true);
  float *mean = buffers.ResultIf(true), *inverse_std = buffers.ResultIf(true);
  running.new_mean = buffers.ResultIf(call.has_running_mean);
  running.new_variance = buffers.ResultIf(call.has_running_variance);
  const Normalization<T> work{call.form, eps,         input,   weight,    bias,  output,
                              mean,      inverse_std, running, rectifies, addend};
  buffers.InParts([&](int64_t, int64_t begin, int64_t end) { work.Run(begin, end); });
}

template <typename T>
void Backward(const XLA_FFI_CallFrame& frame) {
  const auto call = CallOf<NormalizationBackwardCall>(frame);
  Buffers buffers(frame, call.form);
  const T *grad = buffers.Argument<T>(), *input = buffers.Argument<T>();
  const float *mean = buffers.Argument(), *inverse_std = buffers.Argument();
  const float* weight = buffers.ArgumentIf(call.has_weight);
  const T* rectified = buffers.ArgumentIf<T>(call.has_rectified);
  const NormalizationBackward<T> work{
      call.form, grad, input, mean, inverse_std, weight, buffers.ResultIf<T>(call.gives_input),
      rectified};
  const std::array<float*, 2> results{buffers.ResultIf(call.gives_weight),
                                      buffers.ResultIf(call.gives_bias)};
  const bool of_parameters = results[0] || results[1];
  const int64_t count = of_parameters ? call.form.num_parameters() : 0;
  std::vector<float> sums(2 * count * buffers.num_parts());
  buffers.InParts([&](int64_t part, int64_t begin, int64_t end) {
    float* of_weight = of_parameters ? sums.data() + 2 * count * part : nullptr;
    work.Run(begin, end, of_weight, of_weight + count);
  });
  for (size_t i = 0; i < 2; ++i) {
    if (!results[i]) continue;
    for (int64_t j = 0; j < count; ++j) {
      float sum = 0;
      for (int64_t part = 0; part < buffers.num_parts(); ++part) {
        sum += sums[(2 * part + static_cast<int64_t>(i)) * count + j];
      }
      results[i][j] = sum;
    }
  }
}

}  // namespace

void RunNormalization(const XLA_FFI_CallFrame& frame) {
  IsFfiFloat(frame.args.args[0]) ? Forward<float>(frame) : Forward<c10::BFloat16>(frame);
}

void RunNormalizationBackward(const XLA_FFI_CallFrame& frame) {
  IsFfiFloat(frame.args.args[0]) ? Backward<float>(frame) : Backward<c10::BFloat16>(frame);
}

}  // namespace torch_xla::cpu
