#include "runtime/element_type.h"

#include <array>

#include "runtime/buffer_type.h"

namespace torch_xla::runtime {
namespace {

using namespace pjrt;

struct ElementTypeFacts {
  size_t byte_width;
  std::string_view mlir_name;
  PJRT_Buffer_Type buffer_type;
};

// In the order of ElementType.
constexpr std::array<ElementTypeFacts, 21> kFacts = {{
    {0, "invalid", PJRT_Buffer_Type_INVALID},
    {1, "i1", PJRT_Buffer_Type_PRED},
    {1, "i8", PJRT_Buffer_Type_S8},
    {2, "i16", PJRT_Buffer_Type_S16},
    {4, "i32", PJRT_Buffer_Type_S32},
    {8, "i64", PJRT_Buffer_Type_S64},
    {1, "ui8", PJRT_Buffer_Type_U8},
    {2, "ui16", PJRT_Buffer_Type_U16},
    {4, "ui32", PJRT_Buffer_Type_U32},
    {8, "ui64", PJRT_Buffer_Type_U64},
    {1, "f8E4M3FN", PJRT_Buffer_Type_F8E4M3FN},
    {1, "f8E4M3FNUZ", PJRT_Buffer_Type_F8E4M3FNUZ},
    {1, "f8E5M2", PJRT_Buffer_Type_F8E5M2},
    {1, "f8E5M2FNUZ", PJRT_Buffer_Type_F8E5M2FNUZ},
    {1, "f8E8M0FNU", PJRT_Buffer_Type_F8E8M0FNU},
    {2, "f16", PJRT_Buffer_Type_F16},
    {2, "bf16", PJRT_Buffer_Type_BF16},
    {4, "f32", PJRT_Buffer_Type_F32},
    {8, "f64", PJRT_Buffer_Type_F64},
    {8, "complex<f32>", PJRT_Buffer_Type_C64},
    {16, "complex<f64>", PJRT_Buffer_Type_C128},
}};
static_assert(kFacts.size() == static_cast<size_t>(ElementType::kC128) + 1);

const ElementTypeFacts& FactsOf(ElementType type) {
  const auto index = static_cast<size_t>(type);
  return kFacts[index < kFacts.size() ? index : 0];
}

}  // namespace

size_t ByteWidth(ElementType type) { return FactsOf(type).byte_width; }

std::string_view MlirName(ElementType type) { return FactsOf(type).mlir_name; }

PJRT_Buffer_Type ToBufferType(ElementType type) { return FactsOf(type).buffer_type; }

ElementType FromBufferType(PJRT_Buffer_Type type) {
  for (size_t i = 0; i < kFacts.size(); ++i) {
    if (kFacts[i].buffer_type == type) return static_cast<ElementType>(i);
  }
  return ElementType::kInvalid;
}

int BufferTypeSince(PJRT_Buffer_Type type) {
  return type == PJRT_Buffer_Type_F8E8M0FNU ? 63 : kOldestApiMinor;
}

}  // namespace torch_xla::runtime
