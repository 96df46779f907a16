// Writing a result into a tensor that is already there.
#pragma once

#include <ATen/core/Tensor.h>

#include "ir/node.h"

namespace torch_xla::aten {

/// Writes `value` into `self` as an in-place op does: the shapes must be equal and the
/// dtype castable. `op` is for the messages.
void AssignInPlace(const at::Tensor& self, ir::Value value, const char* op = "in-place op");
void AssignInPlace(const at::Tensor& self, const at::Tensor& value);

/// Writes `value` into `out` as an out= op does: `out` is resized where it must be. Of a value
/// whether the dtype is castable is the caller's to check (rules/cpu_trial.h).
void AssignOut(const at::Tensor& out, ir::Value value, const char* op = "out= op");
void AssignOut(const at::Tensor& out, const at::Tensor& value);

/// The same for a row of numbers (arange's): an `out` of as many elements keeps its shape.
void AssignNumbers(const at::Tensor& out, ir::Value numbers);
void AssignNumbers(const at::Tensor& out, const at::Tensor& numbers);

}  // namespace torch_xla::aten
