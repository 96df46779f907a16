// Transfers data across the host boundary, and converts between logical and physical dtypes.
#pragma once

#include <ATen/core/Tensor.h>

#include "tensor/device_data.h"

namespace torch_xla::exec {

/// Copies a CPU tensor (any strides) to a device. The tensor may be changed as soon as this
/// returns. In SPMD mode the copy stays on the host until an operation needs it on the devices.
tensor::DeviceDataPtr ToDevice(const at::Tensor& cpu, int device);
/// Device data on foreign memory of the device, which holds a dense row-major array. Returns
/// nullptr if the device holds the dtype as another type, if the memory is not aligned (to 64 bytes
/// on the host, 128 elsewhere), or if the plugin does not accept it. `owner` and `stream` as for
/// Client::ViewOf.
tensor::DeviceDataPtr ViewOf(void* data, ir::ShapeRef shape, int device,
                             const std::shared_ptr<const void>& owner, intptr_t stream);
/// Copies device data into a CPU tensor of its shape (any strides and dtype); waits for the data.
/// Does not release the GIL, so call it without holding the GIL.
void ToHost(tensor::DeviceData& data, const at::Tensor& cpu);
/// A new CPU tensor with the content of the data.
at::Tensor ToHost(tensor::DeviceData& data);

/// The part of the array that each device holds, without the padding of the last tiles.
std::vector<at::Tensor> TilesToHost(tensor::DeviceData& data);

}  // namespace torch_xla::exec
