// What a Lower function works with: the StableHLO builder, the node being lowered,
// and the mapping of logical (torch) dtypes to the device's physical element types.
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

/// The element type of the same values as a torch dtype; throws where XLA has none.
ElementType NaturalType(c10::ScalarType dtype);

/// How torch's dtypes are kept on a device: XLA_USE_BF16, XLA_DOWNCAST_BF16 and what
/// the platform lacks. One table, consulted where text is emitted and where data
/// crosses the host boundary.
ElementType PhysicalType(c10::ScalarType dtype, std::string_view platform);

class LoweringContext {
 public:
  explicit LoweringContext(std::string_view platform);

  stablehlo::Builder& builder() { return builder_; }
  const std::string& platform() const { return platform_; }
  ElementType Physical(c10::ScalarType dtype) const { return PhysicalType(dtype, platform_); }
  stablehlo::Type Physical(ir::ShapeRef shape) const;

  /// The node that is being lowered, and its results as its shape inference gave them.
  const ir::Node& node() const { return *node_; }
  c10::ScalarType output_dtype(size_t i = 0) const { return node_->shape(i)->dtype; }
  ElementType output_element(size_t i = 0) const { return Physical(output_dtype(i)); }
  stablehlo::Type output_type(size_t i = 0) const { return Physical(node_->shape(i)); }
  Dims output_dims(size_t i = 0) const { return output_type(i).dims; }
  /// The logical shape of operand `i` (tensors and scalars in the order of the schema).
  ir::ShapeRef operand_shape(size_t i) const { return node_->operands()[i].shape(); }
  /// PyTorch's result_type over all operands of the node.
  c10::ScalarType CommonDtype() const;

  /// The lowered form of an operand.
  Value Lowered(const ir::Value& value) const;
  /// Whether it has one here: operands of what is data by now need not.
  bool IsLowered(const ir::Value& value) const { return IsLowered(*value.node, value.index); }
  bool IsLowered(const ir::Node& node, size_t result = 0) const;
  /// The nodes of the program, and the values that it gives; for SoleReader. They must outlive
  /// this.
  void SetGraph(std::span<const ir::Node* const> nodes, std::span<const ir::Value> roots);
  /// What reads the first result of `node`, where that is one operand of one node and nothing else.
  const ir::Node* SoleReader(const ir::Node& node);
  /// The same where it is not lowered yet.
  const ir::Node* NextSoleReader(const ir::Node& node);

  /// Records what a node became, that which is lowered or one that will be; throws when a type is
  /// not the one inferred at tracing.
  void SetOutputs(const ir::Node& node, Value value);
  void SetOutputs(const ir::Node& node, const std::vector<Value>& values);
  /// Notes what the node that is lowered is made of, for the lowering of those that read it.
  void Keep(std::vector<Value> parts) { kept_[node_] = std::move(parts); }
  /// What a node has been noted to be made of; empty where nothing is known here.
  std::span<const Value> Kept(const ir::Node& node) const;
  /// Records a leaf (parameter) without lowering it.
  void SetLeaf(const ir::Node& node, Value value) { values_[&node] = {value}; }
  /// The same for one result of a node that others compute.
  void Bind(const ir::Value& value, Value lowered);
  /// The parameter that a word of the node's attributes is, where it is one (Node: numbers).
  std::optional<Value> NumberParameter(size_t word) const;
  /// Of the node that is lowered next.
  void SetNumberParameter(size_t word, Value parameter) { numbers_.emplace_back(word, parameter); }
  /// Lowers one node; its operands must have been lowered before. An exception says which
  /// op failed and, where known, the user's line.
  void Lower(const ir::Node& node);
  /// Lowers a node by itself, into nothing, for what its lowering has to say of the arguments.
  static void Check(const ir::Node& node, std::string_view platform);

 private:
  stablehlo::Builder builder_;
  std::string platform_;
  const ir::Node* node_ = nullptr;
  std::vector<std::pair<size_t, Value>> numbers_;
  std::unordered_map<const ir::Node*, std::vector<Value>> values_, kept_;
  std::span<const ir::Node* const> nodes_;
  std::span<const ir::Value> roots_;
  std::unordered_map<const ir::Node*, const ir::Node*> readers_;  // null: not one alone
};

/// Whether an operand is that number in the program, not a parameter of it.
bool IsNumber(const ir::Value& operand, int64_t number);

}  // namespace torch_xla::lowering
