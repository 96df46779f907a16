// Matrix products of the graph that have not run yet.
#pragma once

#include "ir/node.h"

namespace torch_xla::tensor {

/// If `value` is a matrix product (mm, bmm) that has not run, returns the value with its last two
/// dimensions exchanged: the product of the transposed operands in reverse order. Else returns an
/// empty value.
ir::Value TransposedProduct(const ir::Value& value);

}  // namespace torch_xla::tensor
