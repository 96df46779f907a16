// StableHLO's dot_general on tensors.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_xla::aten {

/// The products of `a` and `b` summed over some dimensions of each, which no reshape brings next
/// to each other: that would lose how the others lie on the devices. The dimensions of `a`, then
/// of `b`, that are left.
at::Tensor DotGeneral(const at::Tensor& a, const at::Tensor& b, const std::vector<int64_t>& a_dims,
                      const std::vector<int64_t>& b_dims);

}  // namespace torch_xla::aten
