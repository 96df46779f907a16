#include "runtime/buffer_type.h"

#include <array>

namespace torch_xla::runtime {
namespace {

using namespace pjrt;

// In the order of ElementType.
constexpr std::array kBufferTypes = {
    PJRT_Buffer_Type_INVALID, PJRT_Buffer_Type_PRED,       PJRT_Buffer_Type_S8,
    PJRT_Buffer_Type_S16,     PJRT_Buffer_Type_S32,        PJRT_Buffer_Type_S64,
    PJRT_Buffer_Type_U8,      PJRT_Buffer_Type_U16,        PJRT_Buffer_Type_U32,
    PJRT_Buffer_Type_U64,     PJRT_Buffer_Type_F8E4M3FN,   PJRT_Buffer_Type_F8E4M3FNUZ,
    PJRT_Buffer_Type_F8E5M2,  PJRT_Buffer_Type_F8E5M2FNUZ, PJRT_Buffer_Type_F8E8M0FNU,
    PJRT_Buffer_Type_F16,     PJRT_Buffer_Type_BF16,       PJRT_Buffer_Type_F32,
    PJRT_Buffer_Type_F64,     PJRT_Buffer_Type_C64,        PJRT_Buffer_Type_C128,
};
static_assert(kBufferTypes.size() == static_cast<size_t>(ElementType::kC128) + 1);

}  // namespace

PJRT_Buffer_Type ToBufferType(ElementType type) {
  const auto index = static_cast<size_t>(type);
  return kBufferTypes[index < kBufferTypes.size() ? index : 0];
}

ElementType FromBufferType(PJRT_Buffer_Type type) {
  for (size_t i = 0; i < kBufferTypes.size(); ++i) {
    if (kBufferTypes[i] == type) return static_cast<ElementType>(i);
  }
  return ElementType::kInvalid;
}

int BufferTypeSince(PJRT_Buffer_Type type) {
  return type == PJRT_Buffer_Type_F8E8M0FNU ? 63 : kOldestApiMinor;
}

}  // namespace torch_xla::runtime
