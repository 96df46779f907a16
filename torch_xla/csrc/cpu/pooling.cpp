// The gradient of max pooling on the device's memory. As StableHLO it would read, for each input,
// all windows that may cover the input.
#include <algorithm>

#include "cpu/calls.h"
#include "cpu/ffi_parts.h"
#include "cpu/ffi_tensor.h"
#include "cpu/handlers.h"

namespace torch_xla::cpu {
namespace {

using namespace runtime::pjrt;

template <typename T>
void Scatter(const XLA_FFI_CallFrame& frame) {
  const auto call = CallOf<MaxPoolBackwardCall>(frame);
  const int64_t planes = call.planes, inputs = call.inputs, outputs = call.outputs;
  const auto* grads = FfiData<const T>(frame.args.args[0]);
  const auto* indices = FfiData<const int32_t>(frame.args.args[1]);
  T* result = FfiData<T>(frame.rets.rets[0]);
  InParts(frame, planes, inputs * choices::kMoved, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T* plane = result + i * inputs;
      std::fill_n(plane, inputs, T{0});
      for (int64_t j = i * outputs; j < (i + 1) * outputs; ++j) {
        const int64_t index = indices[j];
        if (index >= 0 && index < inputs) plane[index] += grads[j];
      }
    }
  });
}

}  // namespace

void RunMaxPoolBackward(const XLA_FFI_CallFrame& frame) {
  IsFfiFloat(frame.args.args[0]) ? Scatter<float>(frame) : Scatter<double>(frame);
}

}  // namespace torch_xla::cpu
