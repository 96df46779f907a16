#include "lazy/shape_inference.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zero.h>

#include "ir/attributes.h"
#include "lazy/argument_decoder.h"

namespace torch_xla::lazy {
namespace {

/// What stands for an operand: no data on the meta device, zeros on the CPU.
at::Tensor Placeholder(ir::ShapeRef shape, c10::DeviceType device) {
  if (shape->wrapped) {
    // A Python number: a CPU scalar that PyTorch lets mix with any device.
    at::Tensor number = at::scalar_tensor(0, at::TensorOptions().dtype(shape->dtype));
    number.unsafeGetTensorImpl()->set_wrapped_number(true);
    return number;
  }
  at::Tensor tensor =
      at::empty(shape->dims, at::TensorOptions().dtype(shape->dtype).device(device));
  return device == c10::kMeta ? tensor : tensor.zero_();
}

/// A Scalar argument's value is not known here; Meta kernels only look at its type.
c10::Scalar NumberOfType(c10::ScalarType dtype) {
  if (c10::isComplexType(dtype)) return c10::complex<double>(1, 0);
  if (c10::isFloatingType(dtype)) return 1.0;
  if (dtype == c10::ScalarType::Bool) return true;
  return int64_t{1};
}

/// The actual value where the leaf carries it: some checks are about values.
c10::Scalar ScalarOf(const ir::Value& value) {
  if (!value.node->attributes().empty())
    return ir::AttributeReader(value.node->attributes()).Scalar();
  return NumberOfType(value.shape()->dtype);
}

struct Placeholders {
  const ir::Node::Operands& operands;
  const c10::DeviceType device;
  size_t next = 0;

  at::Tensor Tensor() { return Placeholder(operands[next++].shape(), device); }
  c10::Scalar Scalar() { return ScalarOf(operands[next++]); }
};

/// Calls the operator on placeholders.
torch::jit::Stack Call(const c10::OperatorHandle& handle, const ir::OpSpec& op,
                       const ir::Node::Operands& operands, const ir::Words& attributes,
                       c10::DeviceType device) {
  torch::jit::Stack stack;
  ArgumentDecoder decoder(Placeholders{operands, device}, attributes);
  for (const ir::ArgSpec& arg : op.args) stack.push_back(decoder.Argument(arg.kind));
  at::AutoDispatchBelowAutograd below_autograd;
  // A Python mode that watches the user's calls must not see ours.
  c10::impl::ExcludeDispatchKeyGuard no_modes(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  handle.callBoxed(stack);
  return stack;
}

ir::ShapeRef ShapeOf(const at::Tensor& tensor) {
  return tensor.defined() ? ir::GetShape(tensor.scalar_type(), tensor.sizes()) : nullptr;
}

}  // namespace

ir::OutputShapes InferShapes(const ir::OpSpec& op, const ir::Node::Operands& operands,
                             const ir::Words& attributes) {
  auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(op.name, op.overload);
  const torch::jit::Stack stack = Call(handle, op, operands, attributes, c10::kMeta);
  ir::OutputShapes outputs;
  for (const c10::IValue& result : stack) {
    if (result.isTensorList()) {
      for (const at::Tensor& tensor : result.toTensorVector()) {
        outputs.shapes.push_back(ShapeOf(tensor));
      }
    } else {
      outputs.shapes.push_back(ShapeOf(result.toTensor()));
    }
  }
  return outputs;
}

void ThrowAsOnCpu(const ir::OpSpec& op, const ir::Node::Operands& operands,
                  const ir::Words& attributes) {
  constexpr int64_t kMaxElements = 1 << 20;
  int64_t elements = 0;
  for (const ir::Value& operand : operands) {
    elements += c10::multiply_integers(operand.shape()->dims);
    if (elements > kMaxElements) return;
  }
  if (auto handle = c10::Dispatcher::singleton().findSchema({op.name, op.overload})) {
    Call(*handle, op, operands, attributes, c10::kCPU);
  }
}

}  // namespace torch_xla::lazy
