// Barriers across which XLA moves no computation.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace torch_xla::aten {

/// Returns tensors of the same values, all of which depend on all of `tensors` and are not
/// available before those of `late` are.
std::vector<at::Tensor> OptimizationBarrier(const std::vector<at::Tensor>& tensors,
                                            const std::vector<at::Tensor>& late);

/// Applies a barrier in place. Autograd sees no change, since the values stay the same.
void OptimizationBarrierInPlace(const std::vector<at::Tensor>& tensors);

}  // namespace torch_xla::aten
