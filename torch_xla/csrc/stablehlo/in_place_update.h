// Updates of a part of an array: a workaround for a defect of XLA.
#pragma once

#include <optional>

#include "stablehlo/ops.h"

namespace torch_xla::stablehlo {

/// Whether XLA may overwrite elements of `x` before `update`, which replaces a part of `x`, has
/// read them. XLA fuses a dynamic_update_slice with what makes its update, and writes in place. It
/// leaves out of the fusion what reads the operand, but does not see that another reshape of the
/// operand, or the operand itself once reshapes have moved, is the same memory (openxla/xla issue
/// 49176).
///
/// `starts` says where the update is put, if that is known. Then an update may read what is not
/// overwritten, and each of its elements may be computed from the element that it replaces.
bool ReadsOverwritten(Value x, Value update, const std::optional<Dims>& starts);

}  // namespace torch_xla::stablehlo
