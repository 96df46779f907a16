// Data across the host boundary, with the mapping of logical dtypes to physical ones.
#pragma once

#include <ATen/core/Tensor.h>

#include "lazy/device_data.h"

namespace torch_xla::lazy {

/// Copies a CPU tensor (any strides) to a device; the tensor may change on return.
DeviceDataPtr ToDevice(const at::Tensor& cpu, int device);
/// Device data that is the memory of a CPU tensor, which it keeps: where the plugin can, that is
/// on CPU devices for contiguous tensors whose memory is aligned to 64 bytes. Else a copy.
DeviceDataPtr AliasHost(const at::Tensor& cpu, int device);
/// Copies device data into a CPU tensor of its shape (any strides and dtype); waits for
/// the data. Releases nothing of the Python interpreter: call it without the GIL.
void ToHost(DeviceData& data, const at::Tensor& cpu);
/// A new CPU tensor with the content of the data.
at::Tensor ToHost(DeviceData& data);

std::unique_ptr<runtime::Buffer> FilledBuffer(ir::ShapeRef shape, int device,
                                              const c10::Scalar& value);

}  // namespace torch_xla::lazy
