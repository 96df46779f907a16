#include "stablehlo/type.h"

#include <charconv>

namespace torch_xla::stablehlo {

Type Type::Token() {
  Type type;
  type.token = true;
  return type;
}

int64_t Type::num_elements() const {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

std::string Type::ToString() const {
  std::string out;
  AppendTo(out);
  return out;
}

void Type::AppendTo(std::string& out) const {
  if (token) {
    out += "!stablehlo.token";
    return;
  }
  out += "tensor<";
  char buffer[24];
  for (int64_t d : dims) {
    out.append(buffer, std::to_chars(buffer, buffer + sizeof buffer, d).ptr);
    out += 'x';
  }
  out +=
      element == ElementType::kInvalid ? std::string_view("invalid") : runtime::MlirName(element);
  out += '>';
}

}  // namespace torch_xla::stablehlo
