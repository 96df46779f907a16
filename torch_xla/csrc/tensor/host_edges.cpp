#include "tensor/host_edges.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "XLAOps.h"
#include "debug/metrics.h"
#include "ir/attributes.h"
#include "rules/argument_decoder.h"
#include "rules/below_modes.h"
#include "tensor/device.h"

namespace torch_xla::tensor {
namespace {

/// Tensors with more elements than this do not count as bookkeeping.
constexpr int64_t kFewElements = 1 << 18;
/// The host computes a value that is read with at most this many operations.
constexpr size_t kFewCalls = 16;

bool IsNumber(const ir::Node& node) {
  return &node.op() == &ir::ops::scalar || &node.op() == &ir::ops::Constant;
}
bool IsData(const ir::Node& node) { return &node.op() == &ir::ops::device_data; }

bool IsSmallInteger(ir::ShapeRef shape) {
  return shape && c10::isIntegralType(shape->dtype, /*includeBool=*/true) &&
         shape->numel <= kFewElements;
}

/// Whether the CPU can move such data from place to place.
bool IsSmallData(ir::ShapeRef shape) {
  return shape && shape->numel <= kFewElements && !c10::isFloat8Type(shape->dtype) &&
         (c10::isIntegralType(shape->dtype, /*includeBool=*/true) ||
          c10::isFloatingType(shape->dtype));
}

bool IsSmallLeaf(const ir::Value& value) {
  return (IsData(*value.node) || IsNumber(*value.node)) && IsSmallData(value.shape());
}

/// Whether a value is data on the device, or a view of such data.
bool IsSample(const ir::Value& value) {
  const ir::Node& node = *value.node;
  return IsSmallLeaf(value) ||
         (&node.op() == &ir::ops::as_strided && std::ranges::all_of(node.operands(), IsSmallLeaf));
}

/// Whether an operator on integers gives exactly the same result on the CPU for all values.
/// Operators that divide, shift or index are left out: the CPU may refuse them or treat them
/// differently.
bool IsExact(const ir::OpSpec& op) {
  if (&op == &ir::ops::fill || &op == &ir::ops::cast || &op == &ir::ops::expand) return true;
  if (&op == &ir::ops::arange) return true;
  static const auto& names = *new std::unordered_set<std::string_view>{
      "aten::abs",
      "aten::add",
      "aten::all",
      "aten::amax",
      "aten::amin",
      "aten::any",
      "aten::arange",
      "aten::as_strided",
      "aten::bitwise_and",
      "aten::bitwise_not",
      "aten::bitwise_or",
      "aten::bitwise_xor",
      "aten::cat",
      "aten::clone",
      "aten::cumsum",
      "aten::eq",
      "aten::flip",
      "aten::ge",
      "aten::gt",
      "aten::isin",
      "aten::le",
      "aten::logical_and",
      "aten::logical_not",
      "aten::logical_or",
      "aten::logical_xor",
      "aten::lt",
      "aten::masked_fill",
      "aten::max",
      "aten::maximum",
      "aten::min",
      "aten::minimum",
      "aten::mul",
      "aten::ne",
      "aten::neg",
      "aten::repeat",
      "aten::rsub",
      "aten::constant_pad_nd",
      "aten::sub",
      "aten::sum",
      "aten::where",
  };
  if (!names.contains(op.name)) return false;
  const auto handle = c10::Dispatcher::singleton().findSchema({op.name, op.overload});
  return handle && handle->schema().arguments().size() == op.args.size();
}

/// Whether the devices are for compiling only: what a program gives there has a shape and no value.
bool IsForCompiling() {
  static const bool result = [] {
    const char* topology = std::getenv("XLA_TOPOLOGY");
    return topology && *topology;
  }();
  return result;
}

/// Appends the nodes that `value` is computed from to `calls`, operands first. Returns false if the
/// host must not compute one of them.
bool CollectCalls(const ir::Value& value, std::vector<const ir::Node*>& calls) {
  const ir::Node& node = *value.node;
  if (IsNumber(node) || std::ranges::find(calls, &node) != calls.end()) return true;
  if (const DeviceData* data = LeafData(value)) return !data->pending() && data->producer() == 0;
  if (!IsBookkeeping(node)) return false;
  for (const ir::Value& operand : node.operands()) {
    if (calls.size() == kFewCalls || !CollectCalls(operand, calls)) return false;
  }
  calls.push_back(&node);
  return true;
}

}  // namespace

bool IsLeaf(const ir::Node& node) { return IsData(node) || IsNumber(node); }

bool IsBookkeeping(const ir::Node& node) {
  if (node.num_outputs() != 1 || !IsSmallInteger(node.shape()) || !IsExact(node.op())) return false;
  for (const ir::Value& operand : node.operands()) {
    if (!IsNumber(*operand.node) && !IsSmallInteger(operand.shape())) return false;
  }
  return true;
}

bool JoinsSamples(const ir::Node& node) {
  return &node.op() == &ir::ops::cat && IsSmallData(node.shape()) &&
         std::ranges::all_of(node.operands(), IsSample);
}

std::optional<HostCalls> HostAlone(const ir::Value& value) {
  std::vector<const ir::Node*> nodes;
  if (!CollectCalls(value, nodes)) return std::nullopt;
  HostCalls calls;
  for (const ir::Node* node : nodes) calls.Add(*node);
  return calls;
}

uint32_t HostCalls::SlotOf(const ir::Value& value) {
  const ir::Node& node = *value.node;
  auto [it, is_new] =
      places_.try_emplace({&node, value.index}, static_cast<uint32_t>(slots_.size()));
  if (!is_new) return it->second;
  Slot& slot = slots_.emplace_back();
  slot.shape = value.shape();
  if (IsNumber(node)) {
    slot.number = ir::AttributeReader(node.attributes()).Scalar();
  } else {
    TORCH_INTERNAL_ASSERT(IsData(node), node.op().name, " is not computed on the host");
    slot.data = DeviceDataPtr::reclaim_copy(static_cast<DeviceData*>(node.payload()));
  }
  return it->second;
}

void HostCalls::Bind(const ir::Value& value, DeviceDataPtr data) {
  places_[{value.node.get(), value.index}] = static_cast<uint32_t>(slots_.size());
  slots_.push_back({value.shape(), std::move(data), std::nullopt, {}});
}

void HostCalls::Add(const ir::Node& node) {
  Call call{&node.op(), node.attributes(), {}, node.shape(), 0};
  for (const ir::Value& operand : node.operands()) call.operands.push_back(SlotOf(operand));
  call.result = places_[{&node, 0}] = static_cast<uint32_t>(slots_.size());
  slots_.push_back({node.shape(), nullptr, std::nullopt, {}});
  calls_.push_back(std::move(call));
}

void HostCalls::Promise(const ir::Value& value, DeviceDataPtr data) {
  promises_.emplace_back(SlotOf(value), std::move(data));
}

std::vector<uint64_t> HostCalls::Producers() const {
  std::vector<uint64_t> producers;
  for (const Slot& slot : slots_) {
    if (slot.data && !slot.data->pending() && slot.data->producer() != 0)
      producers.push_back(slot.data->producer());
  }
  return producers;
}

void HostCalls::Fail(const std::exception_ptr& error, uint64_t producer) const {
  for (const auto& [slot, data] : promises_) {
    if (data->pending()) data->Fail(error, producer);
  }
}

const at::Tensor& HostCalls::Slot::Value() {
  if (value.defined()) return value;
  const auto dtype = at::TensorOptions().dtype(shape->dtype);
  if (number) {
    value = at::scalar_tensor(*number, dtype);
    // A Python number must not decide the dtype of the result.
    value.unsafeGetTensorImpl()->set_wrapped_number(shape->wrapped);
  } else {
    const auto& fill = data->fill();
    value = fill ? at::full(shape->dims, *fill, dtype) : Download(data->Get(), shape);
  }
  return value;
}

/// Decodes the operands of a call one after the other.
struct SlotOperands {
  std::vector<HostCalls::Slot>& slots;
  const std::vector<uint32_t>& operands;
  size_t next = 0;

  at::Tensor Tensor() { return slots[operands[next++]].Value(); }
  c10::Scalar Scalar() {
    const HostCalls::Slot& slot = slots[operands[next]];
    if (!slot.number) return Tensor().item();
    ++next;
    return *slot.number;
  }
};

at::Tensor HostCalls::Compute(const Call& call) {
  SlotOperands operands{slots_, call.operands};
  at::Tensor result;
  if (call.op == &ir::ops::fill || call.op == &ir::ops::cast || call.op == &ir::ops::expand) {
    result = operands.Tensor().expand(call.shape->dims);
  } else if (call.op == &ir::ops::arange) {
    const at::Tensor start = operands.Tensor(), step = operands.Tensor();
    result = at::arange(call.shape->numel, start.options().dtype(c10::kLong)).mul(step).add(start);
  } else {
    const auto handle =
        c10::Dispatcher::singleton().findSchemaOrThrow(call.op->name, call.op->overload);
    torch::jit::Stack stack;
    rules::ArgumentDecoder decoder(operands, call.attributes);
    for (const ir::ArgSpec& arg : call.op->args) {
      // An argument that is not part of the computation gets its default value.
      const auto& otherwise = handle.schema().arguments()[stack.size()].default_value();
      const bool ignored = arg.kind == ir::ArgKind::kIgnored && otherwise;
      stack.push_back(ignored ? *otherwise : decoder.Argument(arg.kind));
    }
    handle.callBoxed(stack);
    result = stack.back().toTensor();
  }
  TORCH_INTERNAL_ASSERT(result.sizes() == c10::IntArrayRef(call.shape->dims), call.op->name, ": ",
                        result.sizes(), " on the host");
  // Gives the result its own memory: as_strided counts its offset from the beginning of the memory.
  result = result.to(call.shape->dtype);
  return result.storage_offset() == 0 ? result.contiguous()
                                      : result.clone(at::MemoryFormat::Contiguous);
}

void HostCalls::Run(uint64_t producer) {
  static auto& counter = *new debug::Counter("HostCalls");
  if (promises_.empty()) return;
  counter.Add();
  at::DisableRecordFunctionGuard no_profile;
  const rules::BelowModes below;  // The calling thread may be the tracing thread.
  const bool has_values = producer == 0 || !IsForCompiling();
  for (const Call& call : calls_) {
    if (has_values) slots_[call.result].value = Compute(call);
  }
  for (const auto& [slot, data] : promises_) {
    const ir::ShapeRef shape = data->shape();
    const at::Tensor value = has_values
                                 ? slots_[slot].Value()
                                 : at::empty(shape->dims, at::TensorOptions().dtype(shape->dtype));
    data->Fulfil(Upload(value, *DevicesOf(data->device()), *data->sharding()), producer);
  }
}

}  // namespace torch_xla::tensor
