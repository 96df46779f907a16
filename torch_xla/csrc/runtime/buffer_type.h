// Conversions between element types and the numbers of the PJRT C ABI.
#pragma once

#include "runtime/element_type.h"
#include "runtime/pjrt_abi.h"

namespace torch_xla::runtime {

/// Returns PJRT_Buffer_Type_INVALID for kInvalid.
pjrt::PJRT_Buffer_Type ToBufferType(ElementType type);

/// Returns kInvalid for types that the runtime does not support (S4, tokens, …).
ElementType FromBufferType(pjrt::PJRT_Buffer_Type type);

/// The minor version of the API that introduced `type`. Older plugins abort if they see the type.
int BufferTypeSince(pjrt::PJRT_Buffer_Type type);

}  // namespace torch_xla::runtime
