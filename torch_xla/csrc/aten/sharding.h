// How tensors lie on the devices in SPMD mode.
#pragma once

#include <ATen/core/Tensor.h>

#include "tensor/sharding.h"

namespace torch_xla::aten {

/// The tensor's value and all that it is given later lie so. What is on the devices already is
/// moved by the next program. For a view it is a hint of the value that it has now alone.
/// Throws ValueError unless the sharding is of arrays of this rank over all devices.
void MarkSharding(const at::Tensor& tensor, const distributed::Sharding* sharding);
/// From now on XLA chooses.
void ClearSharding(const at::Tensor& tensor);
/// What MarkSharding said; null if nothing, and for views.
const distributed::Sharding* MarkedSharding(const at::Tensor& tensor);
/// The same, else how the tensor's data lies; null where that is not known (yet).
const distributed::Sharding* ShardingOf(const at::Tensor& tensor);
/// A new tensor of the same values, which lie so; its gradient shall, too, if autograd is told.
at::Tensor WithSharding(const at::Tensor& tensor, const distributed::Sharding* sharding);

/// A tensor of a CPU tensor's values, on the devices when this returns.
at::Tensor SendSharded(const at::Tensor& cpu, const distributed::Sharding* sharding);
/// What each device holds of a tensor, as CPU tensors. Blocks until it is computed.
std::vector<at::Tensor> TilesOf(const at::Tensor& tensor);

}  // namespace torch_xla::aten
