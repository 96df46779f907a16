// The memory of an array, and copies between it and the host's tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <vector>

#include "ir/shape.h"
#include "runtime/client.h"
#include "tensor/device.h"
#include "tensor/sharding.h"

namespace torch_xla::lazy {

/// An array's memory: a buffer on each device of a set, which hold the tiles of a sharding.
using Buffers = c10::SmallVector<std::unique_ptr<runtime::Buffer>, 1>;

/// The torch dtype whose bytes a device has for `dtype`.
c10::ScalarType PhysicalDtype(c10::ScalarType dtype);
/// An uninitialized CPU tensor of those bytes.
at::Tensor EmptyOnHost(c10::ScalarType dtype, c10::IntArrayRef dims);
/// A CPU tensor filled with `value`, to be read only.
at::Tensor Filled(ir::ShapeRef shape, const c10::Scalar& value);

/// Copies a CPU tensor (any strides) to one device; the tensor may change on return.
std::unique_ptr<runtime::Buffer> Upload(const at::Tensor& cpu, int device);
/// Copies a CPU tensor to devices, tile by tile.
Buffers Upload(const at::Tensor& cpu, const DeviceSet& devices,
               const distributed::Sharding& sharding);

/// Copies buffers, each to its CPU tensor of the physical dtype and of as many bytes, and waits for
/// them.
void Download(const Buffers& buffers, const std::vector<at::Tensor>& dense);
/// A buffer that holds a whole array of this shape, as a CPU tensor.
at::Tensor Download(const Buffers& buffers, ir::ShapeRef shape);

/// The box of a CPU tensor that a tile is.
at::Tensor BoxOf(at::Tensor array, const distributed::Sharding::Tile& tile);
/// The same box of an array that holds the tile alone.
at::Tensor Unfilled(at::Tensor array, const distributed::Sharding::Tile& tile);

}  // namespace torch_xla::lazy
