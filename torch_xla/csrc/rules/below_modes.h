// A guard for kernels that are called in the middle of a user's operation.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace torch_xla::rules {

/// While it lives, called kernels are below autograd, autocast, transforms of torch.func and Python
/// modes: a mode that watches the user's calls must not see internal calls.
struct BelowModes {
  at::AutoDispatchBelowAutograd autograd;
  c10::impl::ExcludeDispatchKeyGuard modes{
      c10::autocast_dispatch_keyset |
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
                           c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                           c10::DispatchKey::FuncTorchDynamicLayerBackMode,
                           c10::DispatchKey::FuncTorchVmapMode})};
};

}  // namespace torch_xla::rules
