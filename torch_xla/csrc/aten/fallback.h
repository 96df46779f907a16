// What happens to an operator that has no kernel here (docs/op_lowering.md): PyTorch's own
// decomposition, else the CPU.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

namespace torch_xla::aten {

/// What the dispatcher calls for such an operator.
void Fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// Runs a decomposition of the operator on the stack; false when there is none. Set by
/// the Python layer, where PyTorch keeps its decompositions.
using Decomposer = bool (*)(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void SetDecomposer(Decomposer decomposer);

}  // namespace torch_xla::aten
