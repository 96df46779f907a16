// Writes results into existing tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include "ir/node.h"

namespace torch_xla::aten {

/// Writes `value` into `self` like an in-place op: the shapes must be equal, and the dtype must be
/// castable. `op` is used in error messages.
void AssignInPlace(const at::Tensor& self, ir::Value value, const char* op = "in-place op");
void AssignInPlace(const at::Tensor& self, const at::Tensor& value);

/// Writes `value` into `out` like an out= op; `out` is resized if necessary. With an ir::Value the
/// caller must check that the dtype is castable (rules/cpu_trial.h).
void AssignOut(const at::Tensor& out, ir::Value value, const char* op = "out= op");
void AssignOut(const at::Tensor& out, const at::Tensor& value);

/// The same for a row of numbers (from arange). An `out` with as many elements keeps its shape.
void AssignNumbers(const at::Tensor& out, ir::Value numbers);
void AssignNumbers(const at::Tensor& out, const at::Tensor& numbers);

}  // namespace torch_xla::aten
