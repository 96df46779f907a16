// The gradient of max pooling by a call of ours, on the device's memory: as StableHLO it looks, for
// each input, at all windows that may cover it. Table lowering/kernel_table.inc says where.
#pragma once

#include <optional>

#include "lowering/context.h"

namespace torch_xla::lowering {

/// Of an input of dimensions `dims`, the last `pooled` of which make a plane: `grad_output` goes
/// where `indices`, of its shape, say in the plane. Nothing where no call is made.
std::optional<Value> CallMaxPoolBackward(const LoweringContext& cx, Value grad_output,
                                         Value indices, const Dims& dims, int64_t pooled);

}  // namespace torch_xla::lowering
