// The shardings of tensors in SPMD mode.
#pragma once

#include <ATen/core/Tensor.h>

#include "tensor/sharding.h"

namespace torch_xla::aten {

/// Gives the tensor's current value and all its later values this sharding. Data that is on the
/// devices already is resharded by the next program. For a view only its current value is sharded.
/// Throws ValueError unless the sharding is for arrays of this rank over all devices.
void MarkSharding(const at::Tensor& tensor, const distributed::Sharding* sharding);
/// Removes the sharding; XLA chooses from now on.
void ClearSharding(const at::Tensor& tensor);
/// The sharding set by MarkSharding; null if there is none, and for views.
const distributed::Sharding* MarkedSharding(const at::Tensor& tensor);
/// The same, or else the sharding of the tensor's data; null if it is not known (yet).
const distributed::Sharding* ShardingOf(const at::Tensor& tensor);
/// A new tensor with the same values and this sharding. Its gradient gets the sharding, too, if
/// autograd records the call.
at::Tensor WithSharding(const at::Tensor& tensor, const distributed::Sharding* sharding);

/// A tensor with the values of a CPU tensor, which are on the devices when this returns.
at::Tensor SendSharded(const at::Tensor& cpu, const distributed::Sharding* sharding);
/// The tile of a tensor on each device, as CPU tensors. Blocks until they are computed.
std::vector<at::Tensor> TilesOf(const at::Tensor& tensor);

}  // namespace torch_xla::aten
