// The memory of an array on devices, and copies between it and CPU tensors.
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

namespace torch_xla::tensor {

/// An array's memory: one buffer on each device of a set, which holds the device's tile of a
/// sharding.
using Buffers = c10::SmallVector<std::unique_ptr<runtime::Buffer>, 1>;

/// The torch dtype of the bytes that a device holds for `dtype`.
c10::ScalarType PhysicalDtype(c10::ScalarType dtype);
/// An uninitialized CPU tensor of the physical dtype of `dtype`.
at::Tensor EmptyOnHost(c10::ScalarType dtype, c10::IntArrayRef dims);
/// A read-only CPU tensor filled with `value`.
at::Tensor Filled(ir::ShapeRef shape, const c10::Scalar& value);

/// Copies a CPU tensor (any strides) to one device. The tensor may be changed as soon as this
/// returns.
std::unique_ptr<runtime::Buffer> Upload(const at::Tensor& cpu, int device);
/// Copies a CPU tensor to several devices, tile by tile.
Buffers Upload(const at::Tensor& cpu, const DeviceSet& devices,
               const distributed::Sharding& sharding);

/// Copies each buffer to its CPU tensor, which has the physical dtype and the same number of bytes,
/// and waits for the copies.
void Download(const Buffers& buffers, const std::vector<at::Tensor>& dense);
/// Copies a buffer that holds a whole array of this shape to a new CPU tensor.
at::Tensor Download(const Buffers& buffers, ir::ShapeRef shape);

/// The part of a CPU tensor that belongs to a tile, as a view.
at::Tensor BoxOf(at::Tensor array, const distributed::Sharding::Tile& tile);
/// The part of `array`, which holds only a tile, that is no padding.
at::Tensor Unfilled(at::Tensor array, const distributed::Sharding::Tile& tile);

}  // namespace torch_xla::tensor
