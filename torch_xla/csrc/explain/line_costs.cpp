#include "explain/line_costs.h"

#include <algorithm>
#include <array>
#include <map>

namespace torch_xla::explain {
namespace {

double Elements(ir::ShapeRef shape) { return shape ? static_cast<double>(shape->numel) : 0; }

double Bytes(ir::ShapeRef shape) {
  return shape ? Elements(shape) * static_cast<double>(c10::elementSize(shape->dtype)) : 0;
}

ir::ShapeRef ShapeOf(const GraphSnapshot& record, uint32_t operand) {
  const auto shapes = record.shapes(operand >> 4);
  return shapes[std::min<size_t>(operand & 15, shapes.size() - 1)];
}

bool Contains(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// The name of the operation without "aten::".
std::string_view BareName(const GraphSnapshot& record, size_t node) {
  std::string_view name = record.node(node).op->name;
  name.remove_prefix(name.rfind(':') + 1);
  return name;
}

/// Operations that only change how an array is accessed.
bool IsView(std::string_view name) {
  static constexpr std::string_view kNames[] = {
      "as_strided", "view",   "_unsafe_view", "expand", "permute",   "t",       "transpose",
      "slice",      "select", "squeeze",      "alias",  "unsqueeze", "reshape", "detach"};
  return Contains(kNames, name);
}

/// Floating-point operations: two per multiplication. `operands` are the operands that are no
/// scalars.
double Flops(std::string_view name, std::span<const ir::ShapeRef> operands, double result) {
  static constexpr std::string_view kProducts[] = {
      "mm",    "bmm",   "matmul",  "mv",     "linear",      "addmm",     "dot",
      "addmv", "inner", "baddbmm", "addbmm", "_grouped_mm", "_scaled_mm"};
  if (Contains(kProducts, name) && operands.size() >= 2) {
    // In an operation with an addend the factors follow the addend.
    const bool adds = name.starts_with("add") || name.starts_with("badd");
    const ir::ShapeRef first = operands[adds && operands.size() >= 3 ? 1 : 0];
    return 2 * result * static_cast<double>(first->dims.empty() ? 1 : first->dims.back());
  }
  if (name.starts_with("convolution") && operands.size() >= 2) {
    const bool backward = name.find("backward") != name.npos;
    const ir::ShapeRef weight = operands[backward && operands.size() >= 3 ? 2 : 1];
    if (weight->dims.empty() || weight->dims[0] == 0) return result;
    const double outputs = backward ? Elements(operands[0]) : result;
    const double once = 2 * outputs * Elements(weight) / static_cast<double>(weight->dims[0]);
    return backward ? 2 * once : once;
  }
  if (name.find("scaled_dot_product") != name.npos && operands.size() >= 3) {
    const ir::ShapeRef key = operands[1];
    const double length =
        key->dims.size() >= 2 ? static_cast<double>(key->dims[key->dims.size() - 2]) : 1;
    const double once = 4 * Elements(operands[0]) * length;
    return name.find("backward") != name.npos ? 2.5 * once : once;
  }
  double most = result;
  for (ir::ShapeRef operand : operands) most = std::max(most, Elements(operand));
  return most;
}

}  // namespace

std::vector<ResultCost> LargestResults(const GraphSnapshot& record, size_t count) {
  std::vector<ResultCost> all;
  for (size_t i = 0; i < record.size(); ++i) {
    if (record.IsLeaf(i) || IsView(BareName(record, i))) continue;
    for (ir::ShapeRef shape : record.shapes(i)) {
      if (!shape) continue;
      all.push_back({record.node(i).op->name, shape, static_cast<int64_t>(Bytes(shape)),
                     record.node(i).location});
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  if (all.size() > count) all.resize(count);
  return all;
}

std::vector<LineCost> CostsByLine(const GraphSnapshot& record) {
  std::map<const ir::SourceLocation*, LineCost> costs;
  for (size_t i = 0; i < record.size(); ++i) {
    if (record.IsLeaf(i)) continue;
    const std::string_view name = BareName(record, i);
    if (IsView(name)) continue;
    std::vector<ir::ShapeRef> operands;
    double bytes = 0, result = 0;
    for (uint32_t operand : record.operands(i)) {
      const ir::ShapeRef shape = ShapeOf(record, operand);
      if (!shape) continue;
      bytes += Bytes(shape);
      if (shape->rank() > 0) operands.push_back(shape);
    }
    for (ir::ShapeRef shape : record.shapes(i)) {
      bytes += Bytes(shape);
      result += Elements(shape);
    }
    LineCost& cost = costs[record.node(i).location];
    cost.flops += Flops(name, operands, result);
    cost.bytes += bytes;
    ++cost.operations;
  }
  std::map<std::string, LineCost> by_line;  // several calls may be on one line
  for (const auto& [location, cost] : costs) {
    LineCost& sum = by_line[ir::LineOf(location)];
    sum.flops += cost.flops;
    sum.bytes += cost.bytes;
    sum.operations += cost.operations;
  }
  std::vector<LineCost> all;
  for (auto& [line, cost] : by_line) {
    cost.line = line;
    all.push_back(std::move(cost));
  }
  return all;
}

}  // namespace torch_xla::explain
