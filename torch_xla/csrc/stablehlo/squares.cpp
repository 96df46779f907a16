#include "stablehlo/squares.h"

#include <algorithm>
#include <unordered_map>

namespace torch_xla::stablehlo {
namespace {

/// Returns the text up to `end`, and removes it and `end` from `text`.
std::string_view Take(std::string_view& text, std::string_view end) {
  const size_t at = text.find(end);
  const std::string_view taken = text.substr(0, at);
  text.remove_prefix(at == text.npos ? text.size() : at + end.size());
  return taken;
}

}  // namespace

bool SquaresAProduct(std::string_view module) {
  // Maps each product, and each other layout of a product, to the product.
  std::unordered_map<std::string_view, std::string_view> products;
  auto product = [&](std::string_view value) {
    auto found = products.find(value);
    return found == products.end() ? std::string_view() : found->second;
  };
  while (!module.empty()) {
    std::string_view line = Take(module, "\n");
    const std::string_view head = Take(line, " = \"stablehlo.");
    if (line.empty()) continue;
    const std::string_view op = Take(line, "\"(");
    std::string_view operands = Take(line, ")");
    const std::string_view first = product(Take(operands, ", ")), second = product(operands);
    const std::string_view result = head.substr(std::min(head.find('%'), head.size()));
    if (op == "dot_general") {
      if (!first.empty() && first == second) return true;
      products[result] = result;
    } else if (!first.empty() && (op == "transpose" || op == "reshape" || op == "convert")) {
      products[result] = first;
    }
  }
  return false;
}

}  // namespace torch_xla::stablehlo
