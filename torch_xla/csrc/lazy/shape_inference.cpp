#include "lazy/shape_inference.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include "ir/attributes.h"

namespace torch_xla::lazy {
namespace {

using ir::ArgKind;

at::Tensor MetaTensor(ir::ShapeRef shape) {
  if (shape->wrapped) {
    // A Python number: a CPU scalar that PyTorch lets mix with any device.
    at::Tensor number = at::scalar_tensor(0, at::TensorOptions().dtype(shape->dtype));
    number.unsafeGetTensorImpl()->set_wrapped_number(true);
    return number;
  }
  return at::empty(shape->dims, at::TensorOptions().dtype(shape->dtype).device(c10::kMeta));
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

class StackBuilder {
 public:
  StackBuilder(const ir::Node::Operands& operands, const ir::Words& attributes)
      : operands_(operands), words_(attributes) {}

  c10::IValue Argument(const ir::ArgSpec& arg) {
    switch (arg.kind) {
      case ArgKind::kTensor:
        return MetaTensor(operands_[next_++].shape());
      case ArgKind::kScalar:
        return ScalarOf(operands_[next_++]);
      case ArgKind::kOptionalTensor:
        return Optional({arg.name, ArgKind::kTensor});
      case ArgKind::kOptionalScalar:
        return Optional({arg.name, ArgKind::kScalar});
      case ArgKind::kTensorList: {
        c10::List<at::Tensor> list;
        for (int64_t n = words_.Int(); n > 0; --n)
          list.push_back(MetaTensor(operands_[next_++].shape()));
        return list;
      }
      case ArgKind::kOptionalTensorList: {
        c10::List<std::optional<at::Tensor>> list;
        for (int64_t n = words_.Int(); n > 0; --n) {
          if (words_.Bool()) {
            list.push_back(MetaTensor(operands_[next_++].shape()));
          } else {
            list.push_back(std::nullopt);
          }
        }
        return list;
      }
      case ArgKind::kConstantScalar:
        return words_.Scalar();
      case ArgKind::kOptionalConstantScalar:
        return Optional({arg.name, ArgKind::kConstantScalar});
      case ArgKind::kInt:
        return words_.Int();
      case ArgKind::kOptionalInt:
        return Optional({arg.name, ArgKind::kInt});
      case ArgKind::kIntList:
        return words_.IntList();
      case ArgKind::kOptionalIntList:
        return Optional({arg.name, ArgKind::kIntList});
      case ArgKind::kBool:
        return words_.Bool();
      case ArgKind::kOptionalBool:
        return Optional({arg.name, ArgKind::kBool});
      case ArgKind::kBoolList: {
        c10::List<bool> list;
        for (int64_t value : words_.IntList()) list.push_back(value != 0);
        return list;
      }
      case ArgKind::kDouble:
        return words_.Double();
      case ArgKind::kOptionalDouble:
        return Optional({arg.name, ArgKind::kDouble});
      case ArgKind::kDoubleList: {
        c10::List<double> list;
        for (double value : words_.DoubleList()) list.push_back(value);
        return list;
      }
      case ArgKind::kOptionalDoubleList:
        return Optional({arg.name, ArgKind::kDoubleList});
      case ArgKind::kDtype:
        return static_cast<c10::ScalarType>(words_.Int());
      case ArgKind::kOptionalDtype:
        return Optional({arg.name, ArgKind::kDtype});
      case ArgKind::kString:
        return std::string(words_.String());
      case ArgKind::kOptionalString:
        return Optional({arg.name, ArgKind::kString});
      case ArgKind::kIgnored:
        return {};
    }
    return {};
  }

 private:
  c10::IValue Optional(const ir::ArgSpec& arg) {
    return words_.Bool() ? Argument(arg) : c10::IValue();
  }

  const ir::Node::Operands& operands_;
  ir::AttributeReader words_;
  size_t next_ = 0;
};

ir::ShapeRef ShapeOf(const at::Tensor& tensor) {
  return tensor.defined() ? ir::GetShape(tensor.scalar_type(), tensor.sizes()) : nullptr;
}

}  // namespace

ir::OutputShapes InferShapes(const ir::OpSpec& op, const ir::Node::Operands& operands,
                             const ir::Words& attributes) {
  auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(op.name, op.overload);
  torch::jit::Stack stack;
  StackBuilder builder(operands, attributes);
  for (const ir::ArgSpec& arg : op.args) stack.push_back(builder.Argument(arg));
  {
    at::AutoDispatchBelowAutograd below_autograd;
    // A Python mode that watches the user's calls must not see ours.
    c10::impl::ExcludeDispatchKeyGuard no_modes(
        c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
    handle.callBoxed(stack);
  }
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

}  // namespace torch_xla::lazy
