// Matrix products of the graph, before they run.
#pragma once

#include "ir/node.h"

namespace torch_xla::lazy {

/// What `value` looks like with its last two dimensions exchanged, where it is a matrix product
/// (mm, bmm) that has not run: the product of the transposed operands, the other way round. Empty
/// where it is something else.
ir::Value TransposedProduct(const ir::Value& value);

}  // namespace torch_xla::lazy
