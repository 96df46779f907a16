#include "ops/pooling_library.h"

#include <algorithm>
#include <limits>

#include "cpu/ffi_parts.h"
#include "cpu/ffi_tensor.h"
#include "lowering/kernel_choice.h"
#include "lowering/library_call.h"
#include "stablehlo/text.h"
#include "tensor/cpu_handler.h"

namespace torch_xla::lowering {

using namespace cpu;

namespace {

using namespace runtime::pjrt;

constexpr const char* kTarget = "torch_xla.cpu_max_pool_backward";

template <typename T>
void Scatter(const XLA_FFI_CallFrame& frame) {
  const auto sizes = FfiAttributes(frame.attrs).List("sizes");
  const int64_t planes = sizes[0], inputs = sizes[1], outputs = sizes[2];
  const auto* grads = FfiData<const T>(frame.args.args[0]);
  const auto* indices = FfiData<const int32_t>(frame.args.args[1]);
  T* result = FfiData<T>(frame.rets.rets[0]);
  InParts(frame, planes, inputs, 1 << 15, [&](int64_t, int64_t begin, int64_t end) {
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

void Handle(const XLA_FFI_CallFrame& frame) {
  IsFfiFloat(frame.args.args[0]) ? Scatter<float>(frame) : Scatter<double>(frame);
}

[[maybe_unused]] const bool registered = lazy::RegisterWithClient<kTarget, cpu::Handler<Handle>>();

/// Of the dimensions that are pooled, or those before them.
int64_t Product(const Dims& dims, int64_t from, int64_t to) {
  int64_t product = 1;
  for (int64_t i = from; i < to; ++i) product *= dims[i];
  return product;
}

}  // namespace

std::optional<Value> CallMaxPoolBackward(const LoweringContext& cx, Value grad_output,
                                         Value indices, const Dims& dims, int64_t pooled) {
  const ElementType element = grad_output.element();
  const auto rank = static_cast<int64_t>(dims.size());
  const int64_t planes = Product(dims, 0, rank - pooled);
  const int64_t inputs = Product(dims, rank - pooled, rank);
  if ((element != ElementType::kF32 && element != ElementType::kF64) ||
      inputs > std::numeric_limits<int32_t>::max() ||
      ChooseKernel(cx, "max_pool.gradient", {}, {Kernel::kStableHlo, Kernel::kLibrary}) !=
          Kernel::kLibrary) {
    return std::nullopt;
  }
  const int64_t outputs = Product(grad_output.dims(), rank - pooled, rank);
  // As the forward pass had them.
  indices = stablehlo::Convert(indices, ElementType::kS32);
  return CallLibrary(kTarget, {grad_output, indices}, {{element, dims}},
                     "sizes = " + stablehlo::I64Array(Dims{planes, inputs, outputs}))[0];
}

}  // namespace torch_xla::lowering
