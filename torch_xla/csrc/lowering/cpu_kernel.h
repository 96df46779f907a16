// An operator inside a program that is computed by PyTorch's own CPU kernel: one custom call,
// whose handler (aten/cpu_kernel.cpp) calls the dispatcher on the device's memory. For what
// XLA cannot express or not well (LAPACK); only where the device is the host.
#pragma once

#include <string>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// Target of the custom call.
inline constexpr const char* kCpuKernelTarget = "torch_xla.cpu_kernel";

/// Which kernel is called with the operands of the node being lowered.
struct KernelCall {
  std::string op, overload;
  std::vector<int64_t> kinds, words;  // of its arguments (ir/op.h, ir/attributes.h)
  /// Triples of a buffer, a dimension and an operand: of that dimension the kernel sees as many
  /// elements as the operand says, and the others are padding. A buffer is the index of an operand,
  /// or ~ that of a result.
  std::vector<int64_t> parts;
};

/// The kernel of a node's operator, with the node's arguments.
KernelCall KernelOf(const ir::Node& node);
/// The results of the node being lowered, by the CPU kernel of its operator, or by another kernel.
std::vector<Value> CpuKernel(LoweringContext& cx);
std::vector<Value> CpuKernel(LoweringContext& cx, const KernelCall& call);

}  // namespace torch_xla::lowering
