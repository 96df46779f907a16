#include "lowering/precision.h"

#include <ATen/Context.h>

#include "runtime/platform.h"

namespace torch_xla::lowering {

FloatPrecision CurrentPrecision(std::string_view platform) {
  FloatPrecision precision{.products = mat_mul_precision.load(std::memory_order_relaxed)};
  if (runtime::RoundsToTf32(platform)) {
    const at::Context& context = at::globalContext();
    precision.rounds_products =
        context.float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
        at::Float32Precision::TF32;
    precision.rounds_convolutions = context.allowTF32CuDNN(at::Float32Op::CONV);
  }
  return precision;
}

}  // namespace torch_xla::lowering
