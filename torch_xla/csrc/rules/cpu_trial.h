// Makes the device refuse what the CPU refuses. Most of PyTorch's checks (the dtypes, dims, kernel
// sizes and numbers that an operator takes) are in its CPU kernels, and only few in its Meta
// kernels. So the CPU's kernel is called once for each kind of call, on small tensors, and its
// exception is thrown. This one mechanism serves all operators, so no rule of the CPU needs to be
// written again.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>

#include "ir/node.h"

namespace torch_xla::rules {

/// Throws what the CPU's kernel throws for such a call.
///
/// `arguments` are as for the dispatcher. Of a tensor only the dtype and the sizes matter, so it
/// may be on any device; of a number in place of a tensor the value matters, too. Since the device
/// does not know values, tensors are filled with ones. If that is refused they are filled with
/// zeros, then with the identity matrix; the call is accepted if one of these is. Other arguments
/// are passed unchanged.
///
/// If the tensors have many elements they are scaled down, except for sizes that also occur among
/// the arguments. Then a call is refused only if the CPU also refuses it in full size, or refuses
/// it because of the dtypes.
///
/// Each thread tries a kind of call once: calls with equal operator, dtypes, arguments, default
/// dtype and (scaled) sizes. `result_elements` is the number of elements that the call computes, if
/// known. Random operators and the operators listed in cpu_trial.cpp, each with its reason, are not
/// tried.
void TryOnCpu(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
              int64_t result_elements = 0);
/// The same for a node with these results. Does nothing for an operation that PyTorch does not
/// have.
void TryOnCpu(const ir::OpSpec& op, const ir::Node::Operands& operands, const ir::Words& attributes,
              const ir::OutputShapes& results);

/// The result shapes of the CPU's kernel for tensors of these shapes; throws what it throws. Used
/// after a Meta kernel or a lowering has refused a call: their errors do not always have PyTorch's
/// text and class, and some Meta kernels refuse calls that the CPU accepts. Returns nothing if that
/// would be too much work.
std::optional<ir::OutputShapes> ShapesOnCpu(const ir::OpSpec& op,
                                            const ir::Node::Operands& operands,
                                            const ir::Words& attributes);

/// Throws what the CPU's out= kernel throws for outputs of these dtypes, if it would accept outputs
/// of the node's own dtypes.
void CheckOutDtypes(const ir::Node& node, const char* out_overload,
                    c10::ArrayRef<c10::ScalarType> dtypes);
/// The same for the handle of an out= overload, with its other arguments and its results on any
/// device.
void CheckOutDtypes(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
                    c10::ArrayRef<at::Tensor> results, c10::ArrayRef<c10::ScalarType> dtypes);

/// A write to memory that is also read: the kernel (in place or an out= overload), the written
/// tensor, the operand that shares memory with it, and whether they share only a part.
struct OverlapTrial {
  const char* out_overload;  // null: in place, operand 0 is written
  ir::ShapeRef written;
  size_t operand;
  bool is_partial;
};

/// Whether the CPU's kernel refuses the call. Each thread tries it once for each operator and
/// operand.
bool RefusesOverlap(const ir::OpSpec& op, const ir::Node::Operands& operands,
                    const ir::Words& attributes, const OverlapTrial& trial);

/// The class of a number, for checks in kernels. The number of a call is a parameter of the
/// program, and the call is tried again only for a number of another class. The class tells the
/// sign, whether the number is zero, NaN or infinity, and which dtypes it fits into. It is 0 for
/// most numbers.
uint32_t NumberClass(const c10::Scalar& value);

}  // namespace torch_xla::rules
