// Element types as the PJRT C ABI numbers them.
#pragma once

#include "runtime/element_type.h"
#include "runtime/pjrt_abi.h"

namespace torch_xla::runtime {

/// PJRT_Buffer_Type_INVALID for kInvalid.
pjrt::PJRT_Buffer_Type ToBufferType(ElementType type);

/// kInvalid for types that the runtime does not carry (S4, tokens, …).
ElementType FromBufferType(pjrt::PJRT_Buffer_Type type);

/// The API minor version that brought `type`. Older plugins abort when they see it.
int BufferTypeSince(pjrt::PJRT_Buffer_Type type);

}  // namespace torch_xla::runtime
