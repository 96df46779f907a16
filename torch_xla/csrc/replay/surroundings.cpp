#include "replay/surroundings.h"

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include "aten/index_check.h"
#include "tensor/device.h"
#include "tensor/node_factory.h"

namespace torch_xla::replay {

Surroundings Surroundings::Now() {
  const at::Context& context = at::globalContext();
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  Surroundings now{
      .device = tensor::CurrentDevice(),
      .grad = at::GradMode::is_enabled(),
      .inference = c10::InferenceMode::is_enabled(),
      .anomaly = torch::autograd::AnomalyMode::is_enabled(),
      .saved_hooks = at::SavedTensorDefaultHooks::get_tls_state().stack.size() > 0,
      .autocast_cache = at::autocast::is_autocast_cache_enabled(),
      .deterministic = context.deterministicAlgorithms(),
      .deterministic_warn_only = context.deterministicAlgorithmsWarnOnly(),
      .fill_uninitialized = context.deterministicFillUninitializedMemory(),
      .checks_indices = aten::indices_are_checked.load(),
      .all_special = tensor::AllNumbersSpecial(),
      .included = keys.included_,
      .excluded = keys.excluded_,
      .default_dtype = c10::get_default_dtype_as_scalartype(),
      .autocast_dtype = at::autocast::get_autocast_dtype(at::kXLA),
      .cpu_autocast_dtype = at::autocast::get_autocast_dtype(at::kCPU),
      .precision = lowering::CurrentPrecision(tensor::Platform()),
      .settings = exec::CurrentSettings(),
      .dispatch_modes = c10::impl::TorchDispatchModeTLS::stack_len(),
      .devices = tensor::SpmdDevices(),
      .backends = 0,
  };
  for (bool flag :
       {context.userEnabledCuDNN(), context.deterministicCuDNN(), context.benchmarkCuDNN(),
        context.userEnabledMkldnn(), context.userEnabledNNPACK(), context.userEnabledFlashSDP(),
        context.userEnabledMemEfficientSDP(), context.userEnabledMathSDP(),
        context.userEnabledCuDNNSDP(), context.userEnabledOverrideableSDP(),
        context.userEnabledFA3SDP(), context.allowFP16BF16ReductionMathSDP(),
        context.allowFP16AccumulationCuBLAS(), context.allowFP16ReductionCPU()}) {
    now.backends = 2 * now.backends + flag;
  }
  // What torch.get_float32_matmul_precision() and its successors answer.
  for (auto backend : {at::Float32Backend::CUDA, at::Float32Backend::MKLDNN}) {
    for (auto op : {at::Float32Op::MATMUL, at::Float32Op::CONV, at::Float32Op::RNN}) {
      now.backends =
          8 * now.backends + static_cast<uint64_t>(context.float32Precision(backend, op));
    }
  }
  for (int64_t i = 0; i < at::impl::PythonTorchFunctionTLS::stack_len(); ++i) {
    now.function_modes.push_back(
        at::impl::PythonTorchFunctionTLS::get_stack_at(i)->ptr(getPyInterpreter()));
  }
  return now;
}

const char* Surroundings::Difference(const Surroundings& o) const {
  if (device != o.device) return "the current device";
  if (grad != o.grad) return "grad mode";
  if (inference != o.inference) return "inference mode";
  if (autocast_dtype != o.autocast_dtype || cpu_autocast_dtype != o.cpu_autocast_dtype ||
      autocast_cache != o.autocast_cache) {
    return "autocast";
  }
  if (included != o.included || excluded != o.excluded) return "autocast or another mode";
  if (default_dtype != o.default_dtype) return "the default dtype";
  if (deterministic != o.deterministic || fill_uninitialized != o.fill_uninitialized ||
      deterministic_warn_only != o.deterministic_warn_only) {
    return "the deterministic flags";
  }
  if (precision != o.precision) return "the precision of matrix products";
  if (settings != o.settings && !(settings->Hash() == o.settings->Hash())) {
    return "the compile options";
  }
  if (function_modes != o.function_modes || dispatch_modes != o.dispatch_modes) {
    return "the torch function modes";
  }
  if (anomaly != o.anomaly) return "anomaly mode";
  if (backends != o.backends) return "the flags of torch.backends";
  if (saved_hooks != o.saved_hooks) return "hooks of saved tensors";
  if (checks_indices != o.checks_indices || all_special != o.all_special || devices != o.devices) {
    return "a setting of torch_xla";
  }
  return nullptr;
}

const char* Surroundings::Refusal() const {
  if (dispatch_modes > 0) return "a __torch_dispatch__ mode is active";
  if (saved_hooks) return "hooks of saved tensors are set";
  if (anomaly) return "anomaly mode is on";
  if (checks_indices) return "indices are checked (XLA_CHECK_INDICES)";
  return nullptr;
}

}  // namespace torch_xla::replay
