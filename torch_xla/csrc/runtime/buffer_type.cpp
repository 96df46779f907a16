#include "runtime/buffer_type.h"

namespace torch_xla::runtime {

using namespace pjrt;

PJRT_Buffer_Type ToBufferType(ElementType type) {
  switch (type) {
#define ELEMENT(name, abi, mlir, bytes, dtype) \
  case ElementType::name:                      \
    return PJRT_Buffer_Type_##abi;
#include "runtime/element_types.inc"
    default:
      return PJRT_Buffer_Type_INVALID;
  }
}

ElementType FromBufferType(PJRT_Buffer_Type type) {
  switch (type) {
#define ELEMENT(name, abi, mlir, bytes, dtype) \
  case PJRT_Buffer_Type_##abi:                 \
    return ElementType::name;
#include "runtime/element_types.inc"
    default:
      return ElementType::kInvalid;
  }
}

int BufferTypeSince(PJRT_Buffer_Type type) {
  return type == PJRT_Buffer_Type_F8E8M0FNU ? 63 : kOldestApiMinor;
}

}  // namespace torch_xla::runtime
