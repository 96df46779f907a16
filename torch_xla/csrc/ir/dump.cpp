#include "ir/dump.h"

#include <cstdio>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

namespace torch_xla::ir {
namespace {

template <typename List>
void PrintList(std::ostream& out, const List& list) {
  out << '(';
  for (size_t i = 0; i < list.size(); ++i) out << (i ? ", " : "") << list[i];
  out << ')';
}

void PrintNumber(std::ostream& out, const c10::Scalar& value) {
  if (value.isComplex()) {
    out << value.toComplexDouble();
  } else if (value.isFloatingPoint()) {
    out << value.toDouble();
  } else if (value.type() == c10::ScalarType::UInt64) {
    out << value.toUInt64();
  } else {
    out << IntegerBits(value);
  }
}

void PrintAttribute(std::ostream& out, const ArgSpec& arg, AttributeReader& reader) {
  auto name = [&]() -> std::ostream& { return out << ", " << arg.name << '='; };
  switch (arg.kind) {
    case ArgKind::kTensor:
    case ArgKind::kScalar:
    case ArgKind::kIgnored:
      return;
    case ArgKind::kOptionalTensor:
    case ArgKind::kOptionalScalar:
      if (!reader.Bool()) name() << "None";
      return;
    case ArgKind::kTensorList:
    case ArgKind::kScalarList:
      reader.Int();
      return;
    case ArgKind::kOptionalTensorList: {
      int64_t size = reader.Int();
      name() << '[';
      for (int64_t i = 0; i < size; ++i) out << (i ? ", " : "") << (reader.Bool() ? "%" : "None");
      out << ']';
      return;
    }
    case ArgKind::kOptionalConstantScalar:
    case ArgKind::kOptionalInt:
    case ArgKind::kOptionalIntList:
    case ArgKind::kOptionalBool:
    case ArgKind::kOptionalDouble:
    case ArgKind::kOptionalDoubleList:
    case ArgKind::kOptionalDtype:
    case ArgKind::kOptionalString:
      if (!reader.Bool()) {
        name() << "None";
        return;
      }
      break;
    default:
      break;
  }
  switch (arg.kind) {
    case ArgKind::kConstantScalar:
    case ArgKind::kOptionalConstantScalar: {
      c10::Scalar value = reader.Scalar();
      name();
      PrintNumber(out, value);
      return;
    }
    case ArgKind::kIntList:
    case ArgKind::kOptionalIntList:
    case ArgKind::kBoolList:
      name();
      PrintList(out, reader.IntList());
      return;
    case ArgKind::kDouble:
    case ArgKind::kOptionalDouble:
      name() << reader.Double();
      return;
    case ArgKind::kDoubleList:
    case ArgKind::kOptionalDoubleList:
      name();
      PrintList(out, reader.DoubleList());
      return;
    case ArgKind::kDtype:
    case ArgKind::kOptionalDtype:
      name() << DtypeName(static_cast<c10::ScalarType>(reader.Int()));
      return;
    case ArgKind::kString:
    case ArgKind::kOptionalString:
      name() << '"' << reader.String() << '"';
      return;
    default:
      name() << reader.Int();
  }
}

/// Names nodes by position, and results of a node with several results as "%3.1".
class Names {
 public:
  explicit Names(const std::vector<const Node*>& nodes) {
    for (size_t i = 0; i < nodes.size(); ++i) positions_[nodes[i]] = i;
  }
  std::string Of(const Value& value) const {
    std::string name = "%" + std::to_string(positions_.at(value.node.get()));
    if (value.node->num_outputs() > 1) name += "." + std::to_string(value.index);
    return name;
  }
  std::vector<std::string> OfOperands(const Node& node) const {
    std::vector<std::string> names;
    for (const Value& operand : node.operands()) names.push_back(Of(operand));
    return names;
  }

 private:
  std::unordered_map<const Node*, size_t> positions_;
};

std::string ShapesOf(const Node& node) {
  if (node.num_outputs() == 1) return node.shape()->ToString();
  std::string text = "(";
  for (size_t i = 0; i < node.num_outputs(); ++i) {
    ShapeRef shape = node.shape(i);  // null for a result that the call does not ask for
    text += (i ? ", " : "") + (shape ? shape->ToString() : "none");
  }
  return text + ")";
}

}  // namespace

std::string ToHex(const Hash128& hash) {
  char text[40];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high),
                static_cast<unsigned long long>(hash.low));
  return text;
}

std::vector<const Node*> PostOrder(std::span<const Value> roots) {
  std::vector<const Node*> order;
  std::unordered_set<const Node*> done;
  std::vector<std::pair<const Node*, size_t>> stack;
  for (const Value& root : roots) {
    stack.emplace_back(root.node.get(), 0);
    while (!stack.empty()) {
      auto& [node, next] = stack.back();
      if (next == 0 && done.contains(node)) {
        stack.pop_back();
      } else if (next < node->operands().size()) {
        const Node* operand = node->operands()[next++].node.get();
        if (!done.contains(operand)) stack.emplace_back(operand, 0);
      } else {
        if (done.insert(node).second) order.push_back(node);
        stack.pop_back();
      }
    }
  }
  return order;
}

std::string Describe(const Node& node, std::span<const std::string> operand_names) {
  std::ostringstream out;
  out << node.op().name << '(';
  for (size_t i = 0; i < operand_names.size(); ++i) out << (i ? ", " : "") << operand_names[i];
  out << ')';
  AttributeReader reader(node.attributes());
  for (const ArgSpec& arg : node.op().args) PrintAttribute(out, arg, reader);
  if (const SourceLocation* location = node.location()) {
    out << ", location=" << location->code->function << '@' << location->ToString();
  }
  return out.str();
}

std::vector<std::string> AttributeTexts(const OpSpec& op, const Words& attributes) {
  std::vector<std::string> texts;
  AttributeReader reader(attributes);
  for (const ArgSpec& arg : op.args) {
    std::ostringstream out;
    PrintAttribute(out, arg, reader);
    const std::string text = out.str();
    if (!text.empty()) texts.push_back(text.substr(2));  // without the leading ", "
  }
  return texts;
}

std::string NumberText(const c10::Scalar& number) {
  std::ostringstream out;
  PrintNumber(out, number);
  return out.str();
}

std::string ToText(std::span<const Value> roots) {
  std::vector<const Node*> nodes = PostOrder(roots);
  Names names(nodes);
  std::ostringstream out;
  out << "IR {\n";
  for (size_t i = 0; i < nodes.size(); ++i) {
    out << "  %" << i << " = " << ShapesOf(*nodes[i]) << ' '
        << Describe(*nodes[i], names.OfOperands(*nodes[i]));
    for (size_t r = 0; r < roots.size(); ++r) {
      if (roots[r].node.get() == nodes[i]) out << ", ROOT=" << r;
    }
    out << '\n';
  }
  out << "}\n";
  return out.str();
}

std::string ToDot(std::span<const Value> roots) {
  std::vector<const Node*> nodes = PostOrder(roots);
  Names names(nodes);
  std::unordered_map<const Node*, size_t> positions;
  for (size_t i = 0; i < nodes.size(); ++i) positions[nodes[i]] = i;
  std::ostringstream out;
  out << "digraph G {\n";
  for (size_t i = 0; i < nodes.size(); ++i) {
    std::string label = Describe(*nodes[i], {});
    std::string escaped;
    for (char c : label) {
      if (c == '"' || c == '\\') escaped += '\\';
      escaped += c;
    }
    out << "  node" << i << " [label=\"%" << i << " " << ShapesOf(*nodes[i]) << "\\n" << escaped;
    for (size_t r = 0; r < roots.size(); ++r) {
      if (roots[r].node.get() == nodes[i]) out << "\\nROOT=" << r;
    }
    out << "\"]\n";
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const Value& operand : nodes[i]->operands()) {
      out << "  node" << positions[operand.node.get()] << " -> node" << i;
      if (operand.node->num_outputs() > 1) out << " [label=\"o=" << operand.index << "\"]";
      out << '\n';
    }
  }
  out << "}\n";
  return out.str();
}

}  // namespace torch_xla::ir
