// Handles operators without a kernel in this library (docs/op_lowering.md): runs PyTorch's
// decomposition, or else the CPU's kernel.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

namespace torch_xla::aten {

/// The dispatcher calls this for such an operator.
void Fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// Runs a decomposition of the operator on the stack; returns false if there is none. Set by the
/// Python layer, where PyTorch keeps its decompositions.
using Decomposer = bool (*)(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void SetDecomposer(Decomposer decomposer);

}  // namespace torch_xla::aten
