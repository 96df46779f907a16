#include "ops/norm_library.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <bit>

#include "lazy/cpu_handler.h"
#include "lowering/aten_calls.h"
#include "lowering/kernel_choice.h"
#include "lowering/library_call.h"
#include "runtime/ffi_threads.h"
#include "stablehlo/text.h"

namespace torch_xla::lowering {
namespace {

using namespace runtime::pjrt;

constexpr const char* kTarget = "torch_xla.cpu_norm";

/// The norm of all is that of the norms of parts.
void Handle(const XLA_FFI_CallFrame& frame) {
  const auto p = std::bit_cast<double>(FfiAttributes(frame.attrs).List("p")[0]);
  const at::Tensor x = FfiTensor(frame.args.args[0]).flatten();
  at::Tensor result = FfiTensor(frame.rets.rets[0]);
  // Less than this is not worth a second thread.
  constexpr int64_t kLeast = 1 << 17;
  const int64_t count = std::clamp<int64_t>(x.numel() / kLeast, 1, runtime::FfiThreads(frame));
  at::Tensor parts = at::empty({count}, x.options());
  runtime::RunOnFfiThreads(frame, count, [&](int64_t i) {
    const AtenCalls calls;
    at::Tensor part = parts.select(0, i);
    at::linalg_vector_norm_out(part, Part(x, 0, i, count), p);
  });
  const AtenCalls calls;
  at::linalg_vector_norm_out(result, parts, p);
}

[[maybe_unused]] const bool registered =
    lazy::RegisterWithClient<kTarget, lazy::CpuHandler<Handle>>();

}  // namespace

std::optional<Value> CallNorm(const LoweringContext& cx, Value x, double p) {
  if ((x.element() != ElementType::kF32 && x.element() != ElementType::kF64) || !(p > 0)) {
    return std::nullopt;
  }
  // Fewer are fused with what is around them.
  const bool is_large = x.type().num_elements() >= 1 << 13;
  if (ChooseKernel(cx, "norm", {is_large ? "large" : "small"},
                   {Kernel::kStableHlo, Kernel::kLibrary}) != Kernel::kLibrary) {
    return std::nullopt;
  }
  return CallLibrary(kTarget, {x}, {{x.element(), {}}},
                     "p = " + stablehlo::I64Array(Dims{std::bit_cast<int64_t>(p)}))[0];
}

}  // namespace torch_xla::lowering
