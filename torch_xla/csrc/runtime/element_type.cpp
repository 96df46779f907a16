#include "runtime/element_type.h"

#include <array>

namespace torch_xla::runtime {
namespace {

struct ElementTypeFacts {
  size_t byte_width;
  std::string_view mlir_name;
};

// In the order of ElementType.
constexpr std::array<ElementTypeFacts, 21> kFacts = {{
    {0, "invalid"},       {1, "i1"},         {1, "i8"},     {2, "i16"},        {4, "i32"},
    {8, "i64"},           {1, "ui8"},        {2, "ui16"},   {4, "ui32"},       {8, "ui64"},
    {1, "f8E4M3FN"},      {1, "f8E4M3FNUZ"}, {1, "f8E5M2"}, {1, "f8E5M2FNUZ"}, {1, "f8E8M0FNU"},
    {2, "f16"},           {2, "bf16"},       {4, "f32"},    {8, "f64"},        {8, "complex<f32>"},
    {16, "complex<f64>"},
}};
static_assert(kFacts.size() == static_cast<size_t>(ElementType::kC128) + 1);

const ElementTypeFacts& FactsOf(ElementType type) {
  const auto index = static_cast<size_t>(type);
  return kFacts[index < kFacts.size() ? index : 0];
}

}  // namespace

size_t ByteWidth(ElementType type) { return FactsOf(type).byte_width; }

std::string_view MlirName(ElementType type) { return FactsOf(type).mlir_name; }

}  // namespace torch_xla::runtime
