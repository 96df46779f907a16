// Eager mode: traced operations run before the operator returns.
//
// While the mode is on (torch_xla.experimental.eager), a dispatch key that nothing else uses is
// included. Its fallback sees each operator that the user calls, but not the operators that these
// call.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "debug/environment.h"
#include "exec/executor.h"
#include "tensor/device.h"
#include "tensor/origin.h"

namespace torch_xla::aten {
namespace {

constexpr c10::DispatchKey kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

void RunAtOnce(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const bool wait = debug::EnvFlag("XLA_USE_EAGER_DEBUG_MODE");
  {
    c10::impl::ExcludeDispatchKeyGuard guard(kKey);
    op.callBoxed(stack);
  }
  if (!tensor::ClientCreated()) return;
  tensor::CauseScope cause("eager mode");
  for (int device = 0; device < tensor::DeviceCount(); ++device) exec::RunPending(device, wait);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&RunAtOnce>());
}

}  // namespace
}  // namespace torch_xla::aten
