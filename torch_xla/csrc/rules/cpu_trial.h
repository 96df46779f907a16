// The device refuses what the CPU refuses. Most of PyTorch's checks (which dtypes, dims, kernel
// sizes and numbers an operator takes) are in its CPU kernels, and few of them in its Meta kernels.
// So the CPU's kernel is called once for each kind of call, on small tensors, and what it throws is
// thrown. One mechanism for all operators: where the CPU's rule is wanted, none is written here.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>

#include "ir/node.h"

namespace torch_xla::lazy {

/// Throws what the CPU's kernel throws for such a call.
///
/// `arguments` are as the dispatcher takes them. Of a tensor only the dtype and the sizes count (of
/// a number in a tensor's place, the value too), so it may be on any device. It stands for ones,
/// and where these are refused for zeros: what one of them is accepted for is accepted, as the
/// device does not see values. Numbers, dims, sizes and names are as they are. Where tensors have
/// many elements they are scaled down, sizes that the arguments speak of apart; then only what the
/// CPU refuses in full size too, or for no reason but the dtypes, is refused.
///
/// A kind of call is tried once in a thread: calls alike in operator, dtypes, arguments, default
/// dtype and sizes (as scaled down). `result_elements`: how many the call computes, if known.
/// Random operators and those listed in cpu_trial.cpp, with a reason each, are not tried.
void TryOnCpu(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
              int64_t result_elements = 0);
/// The same for a node with these results; nothing for an operation that PyTorch does not have.
void TryOnCpu(const ir::OpSpec& op, const ir::Node::Operands& operands, const ir::Words& attributes,
              const ir::OutputShapes& results);

/// The results of the CPU's kernel for tensors of these shapes, or what it throws. Meta kernels and
/// lowerings refuse the same calls, but not always with PyTorch's words and class of error, and
/// some Meta kernels refuse what the CPU takes. Empty where that would be much work.
std::optional<ir::OutputShapes> ShapesOnCpu(const ir::OpSpec& op,
                                            const ir::Node::Operands& operands,
                                            const ir::Words& attributes);

/// Throws what the CPU's out= kernel throws for tensors of these dtypes where it would take those
/// of the node's results.
void CheckOutDtypes(const ir::Node& node, const char* out_overload,
                    c10::ArrayRef<c10::ScalarType> dtypes);
/// The same for an out= overload's handle, its other arguments and its results, on any device.
void CheckOutDtypes(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
                    c10::ArrayRef<at::Tensor> results, c10::ArrayRef<c10::ScalarType> dtypes);

/// A write over what is read: the kernel (in place, or of an out= overload), what it writes, which
/// operand is there too, and whether they share a part only or all.
struct OverlapTrial {
  const char* out_overload;  // null: in place, the written is operand 0
  ir::ShapeRef written;
  size_t operand;
  bool is_partial;
};

/// Whether the CPU's kernel refuses that; tried once in a thread for each operator and operand.
bool RefusesOverlap(const ir::OpSpec& op, const ir::Node::Operands& operands,
                    const ir::Words& attributes, const OverlapTrial& trial);

/// What kernels check of a number: a call's number is a parameter of the program, and a call is
/// tried again only for a number of another class. By sign, as a zero, NaN or infinity, and by
/// which dtypes it fits into. 0 for most numbers.
uint32_t NumberClass(const c10::Scalar& value);

}  // namespace torch_xla::lazy
