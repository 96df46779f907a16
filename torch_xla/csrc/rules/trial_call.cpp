#include "rules/trial_call.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include "XLAOps.h"
#include "ir/attributes.h"
#include "rules/argument_decoder.h"
#include "rules/below_modes.h"
#include "rules/meta_kernels.h"

namespace torch_xla::rules {
namespace {

/// A stand-in for a number whose value is not known here.
c10::Scalar NumberOfType(c10::ScalarType dtype) {
  if (c10::isComplexType(dtype)) return c10::complex<double>(1, 0);
  if (c10::isFloatingType(dtype)) return 1.0;
  if (dtype == c10::ScalarType::Bool) return true;
  return int64_t{1};
}

c10::Scalar ScalarOf(const ir::Value& value) {
  const ir::OpSpec* op = &value.node->op();
  if (op == &ir::ops::scalar || op == &ir::ops::Constant)
    return ir::AttributeReader(value.node->attributes()).Scalar();
  return NumberOfType(value.shape()->dtype);
}

struct MetaOperands {
  const ir::Node::Operands& operands;
  size_t next = 0;

  at::Tensor Tensor() {
    const ir::Value& operand = operands[next++];
    ir::ShapeRef shape = operand.shape();
    const at::TensorOptions options = at::TensorOptions().dtype(shape->dtype);
    if (!shape->wrapped) return at::empty(shape->dims, options.device(c10::kMeta));
    // A Python number is a CPU scalar, which PyTorch allows together with any device.
    at::Tensor number = at::scalar_tensor(ScalarOf(operand), options);
    number.unsafeGetTensorImpl()->set_wrapped_number(true);
    return number;
  }
  c10::Scalar Scalar() { return ScalarOf(operands[next++]); }
};

ir::ShapeRef ShapeOf(const at::Tensor& tensor) {
  return tensor.defined() ? ir::GetShape(tensor.scalar_type(), tensor.sizes()) : nullptr;
}

}  // namespace

torch::jit::Stack MetaArguments(const ir::OpSpec& op, const ir::Node::Operands& operands,
                                const ir::Words& attributes) {
  torch::jit::Stack stack;
  ArgumentDecoder decoder(MetaOperands{operands}, attributes);
  for (const ir::ArgSpec& arg : op.args) stack.push_back(decoder.Argument(arg.kind));
  return stack;
}

torch::jit::Stack WithTensors(const torch::jit::Stack& arguments,
                              c10::function_ref<at::Tensor(const at::Tensor&)> replace) {
  auto replaced = [&](const at::Tensor& tensor) {
    return tensor.defined() ? replace(tensor) : tensor;
  };
  torch::jit::Stack stack;
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor()) {
      stack.emplace_back(replaced(argument.toTensor()));
    } else if (argument.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : argument.toTensorVector()) list.push_back(replaced(tensor));
      stack.emplace_back(std::move(list));
    } else if (argument.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : argument.toOptionalTensorVector()) {
        list.push_back(tensor ? std::optional(replaced(*tensor)) : std::nullopt);
      }
      stack.emplace_back(std::move(list));
    } else {
      stack.push_back(argument);
    }
  }
  return stack;
}

void CallBelow(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const BelowModes below;
  op.callBoxed(stack);
}

void CallMeta(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const BelowModes below;
  if (const c10::KernelFunction* kernel = FindMetaKernel(op.operator_name())) {
    kernel->callBoxed(op, c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
  } else {
    op.callBoxed(stack);
  }
}

ir::OutputShapes ShapesOf(const torch::jit::Stack& results) {
  ir::OutputShapes outputs;
  for (const c10::IValue& result : results) {
    if (result.isTensorList()) {
      for (const at::Tensor& tensor : result.toTensorVector()) {
        outputs.shapes.push_back(ShapeOf(tensor));
      }
    } else if (result.isTensor()) {
      outputs.shapes.push_back(ShapeOf(result.toTensor()));
    }
  }
  return outputs;
}

}  // namespace torch_xla::rules
