// torch.autocast("xla"): uses PyTorch's own lists of operators that run in the lower precision, in
// float32, or in the widest type of their arguments.
#include <ATen/Operators.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace torch_xla {
namespace {

// PyTorch's macros use types without their namespaces, which differ between releases, and register
// with a library named `m`.
using namespace at;

#define KERNEL_XLA(...) KERNEL(c10::DeviceType::XLA, __VA_ARGS__)
#define KERNEL_XLA_LOWER_PRECISION_FP(...) KERNEL_XLA(__VA_ARGS__, lower_precision_fp)
#define KERNEL_XLA_FP32(...) KERNEL_XLA(__VA_ARGS__, fp32)
#define KERNEL_XLA_FP32_SET_OPT_DTYPE(...) KERNEL_XLA(__VA_ARGS__, fp32_set_opt_dtype)
#define KERNEL_XLA_PROMOTE(...) KERNEL_XLA(__VA_ARGS__, promote)
#define KERNEL_XLA_DIFFERENT_REDISPATCH_SIGNATURE(...) \
  KERNEL_DIFFERENT_REDISPATCH_SIGNATURE(c10::DeviceType::XLA, __VA_ARGS__)

TORCH_LIBRARY_IMPL(_, AutocastXLA, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastXLA, m) {
  AT_FORALL_LOWER_PRECISION_FP(KERNEL_XLA_LOWER_PRECISION_FP)
  AT_FORALL_FP32(KERNEL_XLA_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(KERNEL_XLA_FP32_SET_OPT_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_XLA_DIFFERENT_REDISPATCH_SIGNATURE)
  AT_FORALL_PROMOTE(KERNEL_XLA_PROMOTE)
  // As on the CPU. CUDA refuses it, since the gradient can overflow float16.
  KERNEL_XLA(binary_cross_entropy, fp32)
}

}  // namespace
}  // namespace torch_xla
