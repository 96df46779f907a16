// The context of a Lower function: the StableHLO builder, the node that is lowered, and the mapping
// of logical (torch) dtypes to the device's physical element types.
#pragma once

#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/node.h"
#include "lowering/scalar_argument.h"
#include "stablehlo/builder.h"
#include "stablehlo/ops.h"

namespace torch_xla::lowering {

using runtime::ElementType;
using stablehlo::Dims;
using stablehlo::Direction;
using stablehlo::ReduceOp;
using stablehlo::Value;

/// The element type with the same values as a torch dtype. Throws if XLA has none.
ElementType NaturalType(c10::ScalarType dtype);

/// The element type that holds a torch dtype on a device. It depends on XLA_USE_BF16,
/// XLA_DOWNCAST_BF16 and the types that the platform lacks. This is the only such table, for
/// lowering and for copies across the host boundary.
ElementType PhysicalType(c10::ScalarType dtype, std::string_view platform);

class LoweringContext {
 public:
  explicit LoweringContext(std::string_view platform);

  stablehlo::Builder& builder() { return builder_; }
  const std::string& platform() const { return platform_; }
  ElementType Physical(c10::ScalarType dtype) const { return PhysicalType(dtype, platform_); }
  stablehlo::Type Physical(ir::ShapeRef shape) const;

  /// The node that is being lowered, and its results as shape inference gave them.
  const ir::Node& node() const { return *node_; }
  c10::ScalarType output_dtype(size_t i = 0) const { return node_->shape(i)->dtype; }
  ElementType output_element(size_t i = 0) const { return Physical(output_dtype(i)); }
  stablehlo::Type output_type(size_t i = 0) const { return Physical(node_->shape(i)); }
  Dims output_dims(size_t i = 0) const { return output_type(i).dims; }
  /// The logical shape of operand `i` (tensors and scalars in the order of the schema).
  ir::ShapeRef operand_shape(size_t i) const { return node_->operands()[i].shape(); }
  /// PyTorch's result_type over all operands of the node.
  c10::ScalarType CommonDtype() const;

  /// The lowered value of an operand.
  Value Lowered(const ir::Value& value) const;
  /// Whether an operand is lowered in this program. Operands of nodes that became data may not be.
  bool IsLowered(const ir::Value& value) const { return IsLowered(*value.node, value.index); }
  bool IsLowered(const ir::Node& node, size_t result = 0) const;
  Value Result(const ir::Node& node, size_t i) const { return values_.at(&node)[i]; }
  /// Sets the nodes and the results of the program, for SoleReader. They must outlive this object.
  void SetGraph(std::span<const ir::Node* const> nodes, std::span<const ir::Value> roots);
  /// The only node that reads the first result of `node`, through a single operand; null if there
  /// are other readers.
  const ir::Node* SoleReader(const ir::Node& node);
  /// The same, but null if that reader is lowered already.
  const ir::Node* NextSoleReader(const ir::Node& node);

  /// Sets the results of a node, either the node being lowered or one that will be. Throws if a
  /// type differs from the type that was inferred at tracing.
  void SetOutputs(const ir::Node& node, Value value);
  void SetOutputs(const ir::Node& node, const std::vector<Value>& values);
  /// Keeps the parts of the node that is being lowered, for the lowering of nodes that read it.
  void Keep(std::vector<Value> parts) { kept_[node_] = std::move(parts); }
  /// The parts that were kept for a node; empty if there are none that are visible here.
  std::span<const Value> Kept(const ir::Node& node) const;
  /// Sets the value of a leaf (a parameter), which is not lowered.
  void SetLeaf(const ir::Node& node, Value value) { values_[&node] = {value}; }
  /// The same for a single result of a node that is computed elsewhere.
  void Bind(const ir::Value& value, Value lowered);
  /// The parameter that a word of the node's attributes is, if it is one (ir::Words::numbers).
  std::optional<Value> NumberParameter(size_t word) const;
  /// Sets a parameter for a word of the node that is lowered next.
  void SetNumberParameter(size_t word, Value parameter) { numbers_.emplace_back(word, parameter); }
  /// Lowers one node, whose operands must be lowered already. An exception names the op and, if
  /// known, the user's line.
  void Lower(const ir::Node& node);
  /// Lowers a node alone and drops the result, so that errors in its arguments are thrown.
  static void Check(const ir::Node& node, std::string_view platform);

 private:
  stablehlo::Builder builder_;
  std::string platform_;
  const ir::Node* node_ = nullptr;
  std::vector<std::pair<size_t, Value>> numbers_;
  std::unordered_map<const ir::Node*, std::vector<Value>> values_, kept_;
  std::span<const ir::Node* const> nodes_;
  std::span<const ir::Value> roots_;
  std::unordered_map<const ir::Node*, const ir::Node*> readers_;  // null: several readers
};

/// Whether an operand is this number as a constant of the program, not as a parameter.
bool IsNumber(const ir::Value& operand, int64_t number);

}  // namespace torch_xla::lowering
