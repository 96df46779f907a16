// Readable texts of graphs.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ir/node.h"

namespace torch_xla::ir {

/// The nodes that `roots` need, operands before users and each node once.
std::vector<const Node*> PostOrder(std::span<const Value> roots);

/// The 32 hexadecimal digits of a hash.
std::string ToHex(const Hash128& hash);

/// The text format of torch_xla: "IR {\n  %0 = f32[2] aten::mul(%1, %2), ROOT=0\n}\n".
std::string ToText(std::span<const Value> roots);

/// The graph in Graphviz's format.
std::string ToDot(std::span<const Value> roots);

/// The node's operation and its attributes by name: "aten::sum(%3), dim=(1), keepdim=0".
std::string Describe(const Node& node, std::span<const std::string> operand_names);

/// The texts of the arguments that are no operands, in order: "dim=(1)".
std::vector<std::string> AttributeTexts(const OpSpec& op, const Words& attributes);

/// The text of a number, such as "2.5"; True is "1".
std::string NumberText(const c10::Scalar& number);

}  // namespace torch_xla::ir
