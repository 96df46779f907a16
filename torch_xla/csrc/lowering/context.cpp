#include "lowering/context.h"

#include <c10/util/Exception.h>
#include <torch/headeronly/core/ScalarType.h>

#include <sstream>

#include "XLAOps.h"
#include "debug/environment.h"
#include "ir/attributes.h"
#include "lowering/may_call.h"
#include "lowering/result_type.h"
#include "runtime/platform.h"

namespace torch_xla::lowering {
ElementType NaturalType(c10::ScalarType dtype) {
  switch (dtype) {
#define ELEMENT(name, abi, mlir, bytes, dtype) \
  case c10::ScalarType::dtype:                 \
    return ElementType::name;
#include "runtime/element_types.inc"
    default:
      // Not a TypeError: Python replaces a TypeError of an operator by "unsupported operand types".
      TORCH_CHECK_NOT_IMPLEMENTED(false, "the xla device has no tensors of dtype ", dtype);
  }
}

ElementType PhysicalType(c10::ScalarType dtype, std::string_view platform) {
  static const bool use_bf16 = debug::EnvFlag("XLA_USE_BF16");
  static const bool downcast_bf16 = debug::EnvFlag("XLA_DOWNCAST_BF16");
  ElementType type = NaturalType(dtype);
  if (type == ElementType::kF32 && (use_bf16 || downcast_bf16)) return ElementType::kBF16;
  if (type == ElementType::kF64) {
    if (use_bf16) return ElementType::kBF16;
    if (downcast_bf16 || runtime::LacksDouble(platform)) return ElementType::kF32;
  }
  if (type == ElementType::kC128 && runtime::LacksDouble(platform)) return ElementType::kC64;
  return type;
}

LoweringContext::LoweringContext(std::string_view platform) : platform_(platform) {
  if (LibraryCalls::Allowed()) builder_.TakeFunctions(stablehlo::FunctionForm::kCalling);
  // Joined dimensions help XLA:CPU. They are not used in partitioned programs, whose dimensions are
  // partitioned.
  builder_.JoinDimensions(MayCallLibraries(platform));
}

stablehlo::Type LoweringContext::Physical(ir::ShapeRef shape) const {
  return {Physical(shape->dtype), Dims(shape->dims.begin(), shape->dims.end())};
}

namespace {

/// Describes the node and its source line for messages.
std::string Described(const ir::Node& node) {
  std::ostringstream text;
  text << "lowering " << node.op().name;
  if (*node.op().overload) text << '.' << node.op().overload;
  text << '(';
  for (size_t i = 0; i < node.operands().size(); ++i) {
    text << (i ? ", " : "") << node.operands()[i].shape()->ToString();
  }
  text << ')';
  const char* how = "\n  traced at ";
  for (auto* location = node.location(); location; location = location->caller) {
    text << how << location->ToString() << " in " << location->code->function;
    how = "\n  called from ";
  }
  return text.str();
}

}  // namespace

c10::ScalarType LoweringContext::CommonDtype() const {
  return ResultType(node_->operands(), DefaultDtype(*node_));
}

Value LoweringContext::Lowered(const ir::Value& value) const {
  return values_.at(value.node.get())[value.index];
}

bool LoweringContext::IsLowered(const ir::Node& node, size_t result) const {
  auto it = values_.find(&node);
  return it != values_.end() && it->second.size() > result && it->second[result].valid();
}

void LoweringContext::SetGraph(std::span<const ir::Node* const> nodes,
                               std::span<const ir::Value> roots) {
  nodes_ = nodes;
  roots_ = roots;
}

const ir::Node* LoweringContext::SoleReader(const ir::Node& node) {
  if (readers_.empty()) {  // few graphs have nodes that ask
    auto add = [&](const ir::Value& value, const ir::Node* reader) {
      if (value.index > 0) return;
      const auto [it, is_first] = readers_.emplace(value.node.get(), reader);
      if (!is_first) it->second = nullptr;
    };
    for (const ir::Node* reader : nodes_) {
      for (const ir::Value& operand : reader->operands()) {
        if (operand) add(operand, reader);
      }
    }
    for (const ir::Value& root : roots_) add(root, nullptr);
  }
  const auto found = readers_.find(&node);
  return found == readers_.end() ? nullptr : found->second;
}

const ir::Node* LoweringContext::NextSoleReader(const ir::Node& node) {
  const ir::Node* reader = SoleReader(node);
  return reader && IsLowered(*reader) ? nullptr : reader;
}

std::span<const Value> LoweringContext::Kept(const ir::Node& node) const {
  const auto found = kept_.find(&node);
  if (found == kept_.end() || !builder_.IsVisible(found->second[0])) return {};
  return found->second;
}

void LoweringContext::SetOutputs(const ir::Node& node, Value value) {
  SetOutputs(node, std::vector<Value>{value});
}

void LoweringContext::SetOutputs(const ir::Node& node, const std::vector<Value>& values) {
  TORCH_INTERNAL_ASSERT(values.size() == node.num_outputs(), "lowering gave ", values.size(),
                        " results, tracing inferred ", node.num_outputs());
  for (size_t i = 0; i < values.size(); ++i) {
    if (!node.shape(i)) continue;  // the call does not ask for this result
    stablehlo::Type expected = Physical(node.shape(i));
    TORCH_INTERNAL_ASSERT(values[i].type() == expected, "result ", i, " was lowered to ",
                          values[i].type().ToString(), ", tracing inferred ", expected.ToString());
  }
  values_[&node] = values;
}

void LoweringContext::Bind(const ir::Value& value, Value lowered) {
  std::vector<Value>& results = values_[value.node.get()];
  if (results.size() <= value.index) results.resize(value.index + 1);
  results[value.index] = lowered;
}

std::optional<Value> LoweringContext::NumberParameter(size_t word) const {
  for (const auto& [index, parameter] : numbers_) {
    if (index == word) return parameter;
  }
  return std::nullopt;
}

stablehlo::Literal LiteralOf(const c10::Scalar& number) {
  if (number.isComplex()) return std::complex<double>(number.toComplexDouble());
  if (number.isFloatingPoint()) return number.toDouble();
  if (number.type() == c10::ScalarType::UInt64) return number.toUInt64();
  return ir::IntegerBits(number);
}

Value Number::Like(Value x) const {
  if (!constant_) {
    return stablehlo::BroadcastInDim(stablehlo::Convert(parameter_, x.element()), x.dims(), {});
  }
  return stablehlo::FullLike(x, LiteralOf(*constant_));
}

void LoweringContext::Lower(const ir::Node& node) {
  node_ = &node;
  const ir::SourceLocation* location = node.location();
  if (location && location->in_programs) {
    std::string name(node.op().name);
    if (location->backward) name += " (backward)";
    builder_.SetLocation(location->code->file, location->line(), name);
  } else {
    builder_.ClearLocation();
  }
  try {
    node.op().lower(*this, node);
    numbers_.clear();
  } catch (c10::Error& error) {
    error.add_context(Described(node));  // keeps the class of the error
    throw;
  } catch (const std::exception& error) {
    TORCH_CHECK(false, error.what(), " (", Described(node), ")");
  }
}

void LoweringContext::Check(const ir::Node& node, std::string_view platform) {
  LoweringContext cx(platform);
  for (const ir::Value& operand : node.operands()) {
    const std::vector<Value>& results = cx.values_[operand.node.get()];
    if (results.size() > operand.index && results[operand.index].valid()) continue;
    cx.Bind(operand, cx.builder_.Parameter(cx.Physical(operand.shape())));
  }
  cx.node_ = &node;
  try {
    node.op().lower(cx, node);
  } catch (const stablehlo::Error& error) {
    TORCH_CHECK(false, node.op().name, ": ", error.what());
  }
}

bool IsNumber(const ir::Value& operand, int64_t number) {
  const ir::Node& node = *operand.node;
  return &node.op() == &ir::ops::Constant &&
         ir::AttributeReader(node.attributes()).Scalar().equal(number);
}

}  // namespace torch_xla::lowering
