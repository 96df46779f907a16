#include "runtime/element_type.h"

namespace torch_xla::runtime {

size_t ByteWidth(ElementType type) {
  switch (type) {
#define ELEMENT(name, abi, mlir, bytes, dtype) \
  case ElementType::name:                      \
    return bytes;
#include "runtime/element_types.inc"
    default:
      return 0;
  }
}

std::string_view MlirName(ElementType type) {
  switch (type) {
#define ELEMENT(name, abi, mlir, bytes, dtype) \
  case ElementType::name:                      \
    return mlir;
#include "runtime/element_types.inc"
    default:
      return "invalid";
  }
}

}  // namespace torch_xla::runtime
