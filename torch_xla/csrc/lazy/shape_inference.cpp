#include "lazy/shape_inference.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zero.h>

#include <unordered_set>

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

torch::jit::Stack Arguments(const ir::OpSpec& op, const ir::Node::Operands& operands,
                            const ir::Words& attributes, c10::DeviceType device) {
  torch::jit::Stack stack;
  ArgumentDecoder decoder(Placeholders{operands, device}, attributes);
  for (const ir::ArgSpec& arg : op.args) stack.push_back(decoder.Argument(arg.kind));
  return stack;
}

/// Calls the operator's kernel.
void CallBelow(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  at::AutoDispatchBelowAutograd below_autograd;
  // A Python mode that watches the user's calls must not see ours.
  c10::impl::ExcludeDispatchKeyGuard no_modes(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  op.callBoxed(stack);
}

ir::ShapeRef ShapeOf(const at::Tensor& tensor) {
  return tensor.defined() ? ir::GetShape(tensor.scalar_type(), tensor.sizes()) : nullptr;
}

ir::OutputShapes ShapesOf(const torch::jit::Stack& results) {
  ir::OutputShapes outputs;
  for (const c10::IValue& result : results) {
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

/// More than this is not computed on the CPU to see what its kernel would say.
bool IsSmall(const ir::Node::Operands& operands) {
  constexpr int64_t kMaxElements = 1 << 20;
  int64_t elements = 0;
  for (const ir::Value& operand : operands) {
    elements += c10::multiply_integers(operand.shape()->dims);
    if (elements > kMaxElements) return false;
  }
  return true;
}

}  // namespace

ir::OutputShapes InferShapes(const ir::OpSpec& op, const ir::Node::Operands& operands,
                             const ir::Words& attributes) {
  auto& dispatcher = c10::Dispatcher::singleton();
  // "aten::geqrf" may have a kernel "xla_meta::geqrf", where PyTorch has none for Meta.
  const std::string_view name(op.name);
  auto own = dispatcher.findSchema({"xla_meta" + std::string(name.substr(name.find("::"))), ""});
  auto handle = own ? *own : dispatcher.findSchemaOrThrow(op.name, op.overload);
  torch::jit::Stack stack = Arguments(op, operands, attributes, c10::kMeta);
  CallBelow(handle, stack);
  return ShapesOf(stack);
}

std::optional<ir::OutputShapes> ShapesOnCpu(const ir::OpSpec& op,
                                            const ir::Node::Operands& operands,
                                            const ir::Words& attributes) {
  auto handle = c10::Dispatcher::singleton().findSchema({op.name, op.overload});
  if (!handle || !IsSmall(operands)) return std::nullopt;
  torch::jit::Stack stack = Arguments(op, operands, attributes, c10::kCPU);
  CallBelow(*handle, stack);
  return ShapesOf(stack);
}

void CheckOutDtypes(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
                    c10::ArrayRef<at::Tensor> results, c10::ArrayRef<c10::ScalarType> dtypes) {
  auto call = [&](auto dtype_of) {
    torch::jit::Stack stack = arguments;
    for (size_t i = 0; i < dtypes.size(); ++i) stack.push_back(results[i].to(dtype_of(i)));
    CallBelow(op, stack);
  };
  // What it refuses either way is in the values, which are not these.
  std::string refused;
  try {
    call([&](size_t i) { return results[i].scalar_type(); });
  } catch (const c10::Error& error) {
    refused = error.what_without_backtrace();
  }
  try {
    call([&](size_t i) { return dtypes[i]; });
  } catch (const c10::Error& error) {
    if (refused != error.what_without_backtrace()) throw;
  }
}

void CheckOutDtypes(const ir::Node& node, const char* out_overload,
                    c10::ArrayRef<c10::ScalarType> dtypes) {
  bool as_they_are = true;
  ir::Hasher hasher;
  hasher.Add(node.hash());
  for (size_t i = 0; i < dtypes.size(); ++i) {
    as_they_are &= !node.shape(i) || node.shape(i)->dtype == dtypes[i];
    hasher.Add(static_cast<uint64_t>(dtypes[i]));
  }
  if (as_they_are) return;
  thread_local auto& checked = *new std::unordered_set<ir::Hash128, ir::Hash128Hasher>;
  const ir::Hash128 key = hasher.Finish();
  if (checked.contains(key)) return;
  const ir::OpSpec& op = node.op();
  if (auto handle = c10::Dispatcher::singleton().findSchema({op.name, out_overload})) {
    const c10::DeviceType device = IsSmall(node.operands()) ? c10::kCPU : c10::kMeta;
    std::vector<at::Tensor> results;
    for (size_t i = 0; i < dtypes.size(); ++i) {
      results.push_back(node.shape(i) ? Placeholder(node.shape(i), device)
                                      : at::empty({0}, at::TensorOptions().dtype(dtypes[i])));
    }
    CheckOutDtypes(*handle, Arguments(op, node.operands(), node.attributes(), device), results,
                   dtypes);
  }
  checked.insert(key);
}

}  // namespace torch_xla::lazy
