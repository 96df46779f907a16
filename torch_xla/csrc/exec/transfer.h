// Data across the host boundary, with the mapping of logical dtypes to physical ones.
#pragma once

#include <ATen/core/Tensor.h>

#include "tensor/device_data.h"

namespace torch_xla::lazy {

/// Copies a CPU tensor (any strides) to a device; the tensor may change on return. In SPMD mode
/// the copy stays on the host until something needs it on the devices.
DeviceDataPtr ToDevice(const at::Tensor& cpu, int device);
/// Device data that is another's memory on the device, a dense row-major array. nullptr where it
/// cannot be: the device holds the dtype as another, the memory is not aligned to 64 bytes (on the
/// host; 128 elsewhere), or the plugin takes none.
/// `owner` and `stream` as for Client::ViewOf.
DeviceDataPtr ViewOf(void* data, ir::ShapeRef shape, int device,
                     const std::shared_ptr<const void>& owner, intptr_t stream);
/// Copies device data into a CPU tensor of its shape (any strides and dtype); waits for
/// the data. Releases nothing of the Python interpreter: call it without the GIL.
void ToHost(DeviceData& data, const at::Tensor& cpu);
/// A new CPU tensor with the content of the data.
at::Tensor ToHost(DeviceData& data);

/// What each device holds of the array, not filled up where the array ends in a tile.
std::vector<at::Tensor> TilesToHost(DeviceData& data);

}  // namespace torch_xla::lazy
