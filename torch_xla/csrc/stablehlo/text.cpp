#include "stablehlo/text.h"

#include <charconv>

namespace torch_xla::stablehlo {
namespace {

template <typename Range, typename Append>
void Join(std::string& out, const Range& range, const Append& append) {
  bool first = true;
  for (const auto& item : range) {
    if (!first) out += ", ";
    first = false;
    append(item);
  }
}

}  // namespace

void AppendInt(std::string& out, int64_t value) {
  char buffer[24];
  out.append(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
}

std::string List(std::span<const int64_t> values) {
  std::string out = "[";
  Join(out, values, [&](int64_t v) { AppendInt(out, v); });
  out += ']';
  return out;
}

std::string I64Array(std::span<const int64_t> values) {
  std::string out = "array<i64";
  if (!values.empty()) out += ": ";
  Join(out, values, [&](int64_t v) { AppendInt(out, v); });
  out += '>';
  return out;
}

std::string BoolArray(const std::vector<bool>& values) {
  std::string out = "array<i1";
  if (!values.empty()) out += ": ";
  Join(out, values, [&](bool v) { out += v ? "true" : "false"; });
  out += '>';
  return out;
}

std::string I64Matrix(const std::vector<std::vector<int64_t>>& rows, int64_t columns,
                      int64_t fill) {
  std::string out = "dense<";
  if (!rows.empty() && columns > 0) {
    out += '[';
    Join(out, rows, [&](const std::vector<int64_t>& row) {
      std::vector<int64_t> filled = row;
      filled.resize(columns, fill);
      out += List(filled);
    });
    out += ']';
  }
  out += "> : tensor<";
  AppendInt(out, static_cast<int64_t>(rows.size()));
  out += 'x';
  AppendInt(out, columns);
  out += "xi64>";
  return out;
}

std::string Quoted(std::string_view text) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string out = "\"";
  for (unsigned char c : text) {
    if (c == '"' || c == '\\' || c < 0x20 || c >= 0x7f) {
      out += '\\';
      out += kHex[c >> 4];
      out += kHex[c & 15];
    } else {
      out += static_cast<char>(c);
    }
  }
  out += '"';
  return out;
}

std::string TypeNames(std::span<const Value> values) {
  std::string out;
  Join(out, values, [&](Value v) {
    if (v.valid()) {
      v.type().AppendTo(out);
    } else {
      out += "an invalid value";
    }
  });
  return out;
}

std::string TypeNames(std::span<const Type> types) {
  std::string out;
  Join(out, types, [&](const Type& t) { t.AppendTo(out); });
  return out;
}

std::vector<Type> TypesOf(std::span<const Value> values) {
  std::vector<Type> types;
  types.reserve(values.size());
  for (Value v : values) types.push_back(v.type());
  return types;
}

void Fail(std::string_view op, std::string_view expected, std::span<const Value> operands) {
  std::string text = Cat(op, ": expected ", expected);
  if (!operands.empty()) text += Cat(", got ", TypeNames(operands));
  throw Error(text);
}

void Fail(std::string_view op, std::string_view expected, std::initializer_list<Value> operands) {
  Fail(op, expected, std::span<const Value>(operands.begin(), operands.size()));
}

Builder& CheckTensors(std::string_view op, std::span<const Value> operands) {
  if (operands.empty()) Fail(op, "at least one operand", operands);
  for (Value v : operands) {
    if (!v.valid() || v.type().token) Fail(op, "tensors", operands);
    if (&v.builder() != &operands[0].builder()) Fail(op, "values of the same builder", operands);
  }
  return operands[0].builder();
}

Builder& CheckTensors(std::string_view op, std::initializer_list<Value> operands) {
  return CheckTensors(op, std::span<const Value>(operands.begin(), operands.size()));
}

void CheckDistinct(std::string_view op, std::string_view what, const Dims& dimensions, int64_t rank,
                   std::span<const Value> operands) {
  std::vector<bool> seen(static_cast<size_t>(rank), false);
  for (int64_t d : dimensions) {
    if (d < 0 || d >= rank || seen[d]) {
      Fail(op, Cat(what, " distinct and in [0, ", rank, "), not ", List(dimensions)), operands);
    }
    seen[d] = true;
  }
}

bool SameTypes(std::span<const Type> values, std::span<const Type> expected) {
  if (values.size() != expected.size()) return false;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] != expected[i]) return false;
  }
  return true;
}

ElementType RealOf(ElementType element) {
  if (element == ElementType::kC64) return ElementType::kF32;
  if (element == ElementType::kC128) return ElementType::kF64;
  return element;
}

std::string_view CombinerName(int reduce_op) {
  constexpr std::string_view kNames[] = {"stablehlo.add",     "stablehlo.multiply",
                                         "stablehlo.maximum", "stablehlo.minimum",
                                         "stablehlo.and",     "stablehlo.or"};
  return kNames[reduce_op];
}

}  // namespace torch_xla::stablehlo
