#include "rules/cpu_trial.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "cpu/aten_calls.h"
#include "ir/of_thread.h"
#include "rules/argument_decoder.h"
#include "rules/trial_call.h"

namespace torch_xla::rules {
namespace {

using torch::jit::Stack;

/// Calls on more elements than this are scaled down.
constexpr int64_t kFewElements = 1 << 14;
/// Calls on more elements than this are not tried on the CPU.
constexpr int64_t kManyElements = 1 << 20;
/// Sizes up to this are never scaled: kernel sizes, groups, heads.
constexpr int64_t kSmallSize = 8;

/// A kernel size of -2**63 keeps the CPU busy for ever. The lowering refuses sizes below 1.
bool Hangs(const c10::OperatorHandle& op, const Stack& arguments) {
  if (op.operator_name().name != "aten::fractional_max_pool3d") return false;
  const std::vector<int64_t> sizes = arguments[1].toIntVector();
  return std::any_of(sizes.begin(), sizes.end(), [](int64_t size) { return size < 1; });
}

bool IsTried(const c10::OperatorHandle& op) {
  // Kernels of other libraries may do more than compute, and other devices' kernels set no rule.
  const std::string_view name = op.operator_name().name;
  // This operator has the tag for the sake of dropout, which the CPU's kernel does not have.
  const bool draws = op.hasTag(at::Tag::nondeterministic_seeded) &&
                     name != "aten::_scaled_dot_product_flash_attention_for_cpu";
  if (!name.starts_with("aten::") || draws ||
      !op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU))
    return false;
  static const auto& excluded = *new std::unordered_set<std::string_view>{
      // The lengths are checked where their values are known (ops/loss.cpp); the result shapes
      // depend on them.
      "aten::_ctc_loss",
      // Only the CPU refuses integers: transformers counts the tokens of each expert with this
      // operator on every device but the CPU.
      "aten::histc",
      // Invalid pivots of an empty matrix crash the CPU's kernel.
      "aten::lu_unpack",
      // The size of the result is an argument, which has to be the sum of the values.
      "aten::repeat_interleave",
  };
  // Lists are nodes only if all tensors are float (aten/foreach.h); else PyTorch calls the operator
  // for each tensor. For gradients the forward operator was tried. Their CPU kernels expect the
  // input's dtype of statistics, but Meta's forward, and so the device, has them in float.
  return !name.starts_with("aten::_foreach_") && name.find("backward") == std::string_view::npos &&
         !excluded.contains(name);
}

/// Maps sizes to the sizes of the trial.
struct Scale {
  int shift = 0;
  c10::SmallVector<int64_t, 8> kept;

  int64_t operator()(int64_t size) const {
    if (shift == 0 || size <= kSmallSize) return size;
    if (std::find(kept.begin(), kept.end(), size) != kept.end()) return size;
    return std::max(kSmallSize, size >> shift);
  }
  int64_t Elements(const at::Tensor& tensor) const {
    int64_t elements = 1;
    for (int64_t size : tensor.sizes()) elements *= (*this)(size);
    return elements;
  }
};

bool IsNumber(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->is_wrapped_number() ||
         (tensor.dim() == 0 && tensor.device().is_cpu());
}

template <typename F>
void ForEachTensor(const Stack& arguments, F visit) {
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor()) {
      if (argument.toTensor().defined()) visit(argument.toTensor());
    } else if (argument.isTensorList() || argument.isOptionalTensorList()) {
      for (const c10::IValue& element : argument.toListRef()) {
        if (element.isTensor() && element.toTensor().defined()) visit(element.toTensor());
      }
    }
  }
}

int64_t Elements(const Stack& arguments, const Scale& scale) {
  int64_t elements = 0;
  ForEachTensor(arguments, [&](const at::Tensor& tensor) { elements += scale.Elements(tensor); });
  return elements;
}

Scale ScaleFor(const Stack& arguments, int64_t result_elements) {
  Scale scale;
  if (Elements(arguments, scale) + result_elements <= kFewElements) return scale;
  for (const c10::IValue& argument : arguments) {
    if (argument.isInt()) scale.kept.push_back(argument.toInt());
    if (!argument.isIntList()) continue;
    for (int64_t value : argument.toIntVector()) scale.kept.push_back(value);
  }
  constexpr int kMaxShift = 32;
  do {
    ++scale.shift;
  } while (scale.shift < kMaxShift && Elements(arguments, scale) > kFewElements);
  return scale;
}

void AddArgument(ir::Hasher& hasher, const c10::IValue& argument, const Scale& scale) {
  if (argument.isTensor()) {
    const at::Tensor& tensor = argument.toTensor();
    if (!tensor.defined()) return hasher.Add(uint64_t{1});
    const bool is_number = IsNumber(tensor);
    hasher.Add(static_cast<uint64_t>(tensor.scalar_type()) << 32 |
               static_cast<uint64_t>(tensor.dim()) << 8 | 2 | is_number);
    for (int64_t size : tensor.sizes()) hasher.Add(static_cast<uint64_t>(scale(size)));
    if (is_number) AddArgument(hasher, c10::IValue(tensor.item()), scale);
  } else if (argument.isInt() || argument.isBool()) {
    hasher.Add(argument.isInt() ? uint64_t{4} : uint64_t{5});
    hasher.Add(static_cast<uint64_t>(argument.isInt() ? argument.toInt() : argument.toBool()));
  } else if (argument.isDouble()) {
    hasher.Add(uint64_t{6});
    hasher.Add(std::bit_cast<uint64_t>(argument.toDouble()));
  } else if (argument.isComplexDouble()) {
    hasher.Add(uint64_t{7});
    hasher.Add(std::bit_cast<uint64_t>(argument.toComplexDouble().real()));
    hasher.Add(std::bit_cast<uint64_t>(argument.toComplexDouble().imag()));
  } else if (argument.isString()) {
    hasher.Add(uint64_t{8});
    hasher.Add(std::hash<std::string_view>()(argument.toStringView()));
  } else if (argument.isList()) {
    hasher.Add(argument.toListRef().size() << 8 | 9);
    for (const c10::IValue& element : argument.toListRef()) AddArgument(hasher, element, scale);
  } else {
    hasher.Add(uint64_t{10});
  }
}

ir::Hash128 KeyOf(const c10::OperatorHandle& op, const Stack& arguments, const Scale& scale) {
  ir::Hasher hasher;
  hasher.Add(reinterpret_cast<uintptr_t>(&op.schema()));
  hasher.Add(static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()));
  for (const c10::IValue& argument : arguments) AddArgument(hasher, argument, scale);
  return hasher.Finish();
}

enum class Fill { kOnes, kZeros, kIdentity };
using DtypeAs = c10::ScalarType (*)(c10::ScalarType);

c10::ScalarType AsItIs(c10::ScalarType dtype) { return dtype; }
c10::ScalarType Float(c10::ScalarType) { return c10::kFloat; }
c10::ScalarType FloatOrLong(c10::ScalarType dtype) {
  return c10::isIntegralType(dtype, /*includeBool=*/false) ? c10::kLong : c10::kFloat;
}

Stack OnDevice(const Stack& arguments, const Scale& scale, c10::DeviceType device,
               c10::function_ref<at::Tensor(c10::IntArrayRef, c10::ScalarType)> make) {
  Stack stack = WithTensors(arguments, [&](const at::Tensor& tensor) {
    if (IsNumber(tensor)) return tensor;
    c10::SmallVector<int64_t, 6> sizes;
    for (int64_t size : tensor.sizes()) sizes.push_back(scale(size));
    return make(sizes, tensor.scalar_type());
  });
  for (c10::IValue& argument : stack) {
    if (argument.isDevice()) argument = c10::Device(device);
  }
  return stack;
}

Stack OnCpu(const Stack& arguments, const Scale& scale, Fill fill, DtypeAs as = AsItIs) {
  return OnDevice(arguments, scale, c10::kCPU, [&](c10::IntArrayRef sizes, c10::ScalarType dtype) {
    at::Tensor tensor = at::full(sizes, fill == Fill::kOnes, at::TensorOptions().dtype(as(dtype)));
    if (fill == Fill::kIdentity && sizes.size() > 1) tensor.diagonal(0, -2, -1).fill_(1);
    return tensor;
  });
}

/// While it lives, calls of the CPU's kernel cause no warnings and no profile events.
class Unnoticed {
 private:
  struct Silent : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };
  // The user shall see only the calls on the device, in warnings and in profiles.
  Silent silent_;
  c10::WarningUtils::WarningHandlerGuard no_warnings_{&silent_};
  at::DisableRecordFunctionGuard no_profile_;
  // For a few elements it is not worth waking threads: on a busy processor that takes far longer
  // than the kernel.
  cpu::OneThread one_thread_;
};

/// The exception that the kernel throws for these tensors; null if it throws none.
std::exception_ptr Refusal(const c10::OperatorHandle& op, const Stack& arguments,
                           const Scale& scale, Fill fill, DtypeAs as = AsItIs) {
  const Unnoticed unnoticed;
  try {
    Stack stack = OnCpu(arguments, scale, fill, as);
    CallBelow(op, stack);
    return nullptr;
  } catch (const std::exception&) {
    return std::current_exception();
  }
}

std::exception_ptr Refusal(const c10::OperatorHandle& op, const Stack& arguments,
                           const Scale& scale) {
  std::exception_ptr refusal = Refusal(op, arguments, scale, Fill::kOnes);
  // A one is a good divisor but an invalid index into a single element, and a matrix of ones is
  // singular. So zeros and the identity are tried as well.
  for (Fill fill : {Fill::kZeros, Fill::kIdentity}) {
    if (refusal && !Refusal(op, arguments, scale, fill)) return nullptr;
  }
  return refusal;
}

/// Whether the same call is accepted for common dtypes.
bool IsAboutDtypes(const c10::OperatorHandle& op, const Stack& arguments, const Scale& scale) {
  return !Refusal(op, arguments, scale, Fill::kZeros, Float) ||
         !Refusal(op, arguments, scale, Fill::kZeros, FloatOrLong);
}

at::Tensor OfShape(c10::IntArrayRef sizes, c10::ScalarType dtype) {
  return at::empty(sizes, at::TensorOptions().dtype(dtype).device(c10::kMeta));
}

Stack OnMeta(const Stack& arguments, const Scale& scale) {
  return OnDevice(arguments, scale, c10::kMeta, OfShape);
}

/// The number of elements that the call computes in the sizes of `scale`, or nothing if the Meta
/// kernel refuses them.
std::optional<int64_t> ResultElements(const c10::OperatorHandle& op, const Stack& arguments,
                                      const Scale& scale) {
  try {
    Stack stack = OnMeta(arguments, scale);
    CallMeta(op, stack);
    int64_t elements = 0;
    for (ir::ShapeRef shape : ShapesOf(stack).shapes) elements += shape ? shape->numel : 0;
    return elements;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::exception_ptr Try(const c10::OperatorHandle& op, const Stack& arguments, const Scale& scale,
                       int64_t result_elements) {
  const Scale full;
  if (scale.shift == 0) return Refusal(op, arguments, full);
  std::optional<int64_t> results = ResultElements(op, arguments, scale);
  if (results && Elements(arguments, scale) + *results <= kManyElements) {
    std::exception_ptr refusal = Refusal(op, arguments, scale);
    if (!refusal || IsAboutDtypes(op, arguments, scale)) return refusal;
  }
  // The scaled sizes do not fit together, so try the full sizes.
  if (Elements(arguments, full) + result_elements > kManyElements) return nullptr;
  return Refusal(op, arguments, full);
}

uint32_t RareClass(double value) {
  if (std::isnan(value)) return 1;
  if (value == 0) return 2;
  // The largest number of each dtype. A float's largest number is finite, and infinity fits into
  // floats, too.
  constexpr std::array kLargest{127.0,         255.0,      32767.0,        65504.0,
                                65535.0,       0x1p31 - 1, 0x1p32 - 1,     0x1p63 - 1024,
                                0x1p64 - 2048, 0x1.fep127, 0x1.fffffep127, 0x1.fffffffffffffp1023};
  constexpr std::array kLowest{128.0,         255.0,      32768.0,        65504.0,
                               65535.0,       0x1p31,     0x1p32 - 1,     0x1p63,
                               0x1p64 - 2048, 0x1.fep127, 0x1.fffffep127, 0x1.fffffffffffffp1023};
  const bool is_negative = value < 0;
  uint32_t number = 3;
  for (double limit : is_negative ? kLowest : kLargest) number += std::abs(value) > limit;
  return is_negative ? number + kLargest.size() + 1 : number;
}

using Known = std::unordered_set<ir::Hash128, ir::Hash128Hasher>;
constinit thread_local void* accepted_of_thread = nullptr;
constinit thread_local void* checked_of_thread = nullptr;
constinit thread_local void* overlaps_of_thread = nullptr;

uint32_t RealClass(double value) { return value > 0 && value <= 127 ? 0 : RareClass(value); }

}  // namespace

void TryOnCpu(const c10::OperatorHandle& op, const Stack& arguments, int64_t result_elements) {
  if (!IsTried(op) || Hangs(op, arguments)) return;
  auto& accepted = ir::OfThread<Known>(accepted_of_thread);
  const Scale scale = ScaleFor(arguments, result_elements);
  const ir::Hash128 key = KeyOf(op, arguments, scale);
  if (accepted.contains(key)) return;
  if (std::exception_ptr refusal = Try(op, arguments, scale, result_elements))
    std::rethrow_exception(refusal);
  ir::MakeRoom(accepted);
  accepted.insert(key);
}

void TryOnCpu(const ir::OpSpec& op, const ir::Node::Operands& operands, const ir::Words& attributes,
              const ir::OutputShapes& results) {
  auto handle = c10::Dispatcher::singleton().findSchema({op.name, op.overload});
  if (!handle) return;
  int64_t elements = 0;
  for (ir::ShapeRef shape : results.shapes) elements += shape ? shape->numel : 0;
  TryOnCpu(*handle, MetaArguments(op, operands, attributes), elements);
}

std::optional<ir::OutputShapes> ShapesOnCpu(const ir::OpSpec& op,
                                            const ir::Node::Operands& operands,
                                            const ir::Words& attributes) {
  auto handle = c10::Dispatcher::singleton().findSchema({op.name, op.overload});
  if (!handle) return std::nullopt;
  const Stack arguments = MetaArguments(op, operands, attributes);
  if (Hangs(*handle, arguments) || Elements(arguments, {}) > kManyElements) return std::nullopt;
  try {
    Stack stack = OnCpu(arguments, {}, Fill::kOnes);
    CallBelow(*handle, stack);
    return ShapesOf(stack);
  } catch (const std::exception&) {
    Stack stack = OnCpu(arguments, {}, Fill::kZeros);
    CallBelow(*handle, stack);
    return ShapesOf(stack);
  }
}

void CheckOutDtypes(const c10::OperatorHandle& op, const Stack& arguments,
                    c10::ArrayRef<at::Tensor> results, c10::ArrayRef<c10::ScalarType> dtypes) {
  const bool on_cpu = Elements(arguments, {}) <= kManyElements;
  const Stack inputs = on_cpu ? OnCpu(arguments, {}, Fill::kZeros) : OnMeta(arguments, {});
  auto call = [&](auto dtype_of) {
    Stack stack = inputs;
    for (size_t i = 0; i < dtypes.size(); ++i) {
      const at::TensorOptions options = at::TensorOptions().dtype(dtype_of(i));
      const bool no_data = !on_cpu && results[i].defined();
      stack.emplace_back(at::zeros(results[i].defined() ? results[i].sizes() : c10::IntArrayRef(0),
                                   options.device(no_data ? c10::kMeta : c10::kCPU)));
    }
    CallBelow(op, stack);
  };
  // An error that occurs with either dtype comes from the values, which are not the user's values
  // here.
  std::string refused;
  try {
    call([&](size_t i) { return results[i].defined() ? results[i].scalar_type() : dtypes[i]; });
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
  auto& checked = ir::OfThread<Known>(checked_of_thread);
  const ir::Hash128 key = hasher.Finish();
  if (checked.contains(key)) return;
  const ir::OpSpec& op = node.op();
  if (auto handle = c10::Dispatcher::singleton().findSchema({op.name, out_overload})) {
    std::vector<at::Tensor> results;
    for (size_t i = 0; i < dtypes.size(); ++i) {
      ir::ShapeRef shape = node.shape(i);
      results.push_back(shape ? OfShape(shape->dims, shape->dtype) : at::Tensor());
    }
    CheckOutDtypes(*handle, MetaArguments(op, node.operands(), node.attributes()), results, dtypes);
  }
  ir::MakeRoom(checked);
  checked.insert(key);
}

namespace {

/// Ones, but zeros in integer tensors, which may be indices.
at::Tensor Harmless(int64_t count, c10::ScalarType dtype) {
  const bool is_index = c10::isIntegralType(dtype, /*includeBool=*/false);
  return at::full({count}, is_index ? 0 : 1, at::TensorOptions().dtype(dtype));
}

/// The operands of an OverlapTrial; two of them share memory.
struct OverlappingOperands {
  const ir::Node::Operands& operands;
  const OverlapTrial& trial;
  at::Tensor memory, written;
  size_t next = 0;

  OverlappingOperands(const ir::Node::Operands& operands, const OverlapTrial& trial)
      : operands(operands), trial(trial) {
    memory = Harmless(std::max(trial.written->numel, operands[trial.operand].shape()->numel) + 1,
                      trial.written->dtype);
    written = Part(trial.written->dims, 0);
  }
  at::Tensor Part(c10::IntArrayRef dims, int64_t begin) const {
    return memory.narrow(0, begin, c10::multiply_integers(dims)).view(dims);
  }
  at::Tensor Tensor() {
    const size_t index = next++;
    ir::ShapeRef shape = operands[index].shape();
    if (index == trial.operand && shape->dtype == memory.scalar_type()) {
      if (!trial.is_partial) return written;
      // An operand with equally many elements begins one element later.
      return Part(shape->dims, shape->numel == trial.written->numel);
    }
    if (index == 0 && !trial.out_overload) return written;
    return Harmless(shape->numel, shape->dtype).view(shape->dims);
  }
  c10::Scalar Scalar() {
    ++next;
    return 1;
  }
};

bool KernelRefusesOverlap(const ir::OpSpec& op, const ir::Node::Operands& operands,
                          const ir::Words& attributes, const OverlapTrial& trial) {
  int64_t elements = trial.written->numel;
  for (const ir::Value& operand : operands) elements += operand.shape()->numel;
  if (elements > kManyElements) return trial.is_partial;  // most kernels do so
  auto handle = c10::Dispatcher::singleton().findSchema(
      trial.out_overload ? c10::OperatorName(op.name, trial.out_overload)
                         : c10::OperatorName(std::string(op.name) + "_", op.overload));
  if (!handle) return trial.is_partial;
  const Unnoticed unnoticed;
  const OverlappingOperands tensors(operands, trial);
  Stack stack;
  ArgumentDecoder decoder(tensors, attributes);
  for (const ir::ArgSpec& arg : op.args) stack.push_back(decoder.Argument(arg.kind));
  if (trial.out_overload) stack.emplace_back(tensors.written);
  // Further results are indices.
  while (stack.size() < handle->schema().arguments().size())
    stack.emplace_back(at::empty({0}, at::TensorOptions().dtype(c10::kLong)));
  try {
    CallBelow(*handle, stack);
  } catch (const c10::Error& error) {
    return std::string_view(error.what_without_backtrace()).starts_with("unsupported operation");
  } catch (const std::exception&) {
  }
  return false;
}

}  // namespace

bool RefusesOverlap(const ir::OpSpec& op, const ir::Node::Operands& operands,
                    const ir::Words& attributes, const OverlapTrial& trial) {
  ir::Hasher hasher;
  hasher.Add(reinterpret_cast<uintptr_t>(&op));
  hasher.Add(reinterpret_cast<uintptr_t>(trial.out_overload));
  hasher.Add(trial.operand << 1 | trial.is_partial);
  const ir::Hash128 key = hasher.Finish();
  auto& known =
      ir::OfThread<std::unordered_map<ir::Hash128, bool, ir::Hash128Hasher>>(overlaps_of_thread);
  if (auto it = known.find(key); it != known.end()) return it->second;
  const bool refuses = KernelRefusesOverlap(op, operands, attributes, trial);
  ir::MakeRoom(known);
  known.emplace(key, refuses);
  return refuses;
}

uint32_t NumberClass(const c10::Scalar& value) {
  if (value.isBoolean()) return 0;
  if (value.isComplex()) {
    const c10::complex<double> number = value.toComplexDouble();
    // A complex number fits into real dtypes only if it has no imaginary part.
    return RealClass(number.real()) << 8 | (number.imag() == 0 ? 0 : 1 + RealClass(number.imag()));
  }
  return RealClass(value.toDouble());
}

}  // namespace torch_xla::rules
