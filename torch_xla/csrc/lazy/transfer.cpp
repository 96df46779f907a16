#include "lazy/transfer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "debug/metrics.h"
#include "lazy/device.h"
#include "lazy/errors.h"
#include "lowering/context.h"

namespace torch_xla::lazy {
namespace {

using runtime::ElementType;

/// The torch dtype whose bytes are the physical type's.
c10::ScalarType PhysicalDtype(c10::ScalarType dtype) {
  switch (ElementType physical = lowering::PhysicalType(dtype, Platform()); physical) {
    case ElementType::kBF16:
      return c10::ScalarType::BFloat16;
    case ElementType::kF32:
      return c10::ScalarType::Float;
    case ElementType::kC64:
      return c10::ScalarType::ComplexFloat;
    default:
      return dtype;
  }
}

debug::Metric& InboundData() {
  static auto& metric = *new debug::Metric("InboundData", debug::Unit::kBytes);
  return metric;
}
debug::Metric& OutboundData() {
  static auto& metric = *new debug::Metric("OutboundData", debug::Unit::kBytes);
  return metric;
}
debug::Metric& TransferToDeviceTime() {
  static auto& metric = *new debug::Metric("TransferToDeviceTime", debug::Unit::kTimeNs);
  return metric;
}
debug::Metric& TransferFromDeviceTime() {
  static auto& metric = *new debug::Metric("TransferFromDeviceTime", debug::Unit::kTimeNs);
  return metric;
}

std::unique_ptr<runtime::Buffer> Upload(const at::Tensor& cpu, int device) {
  at::Tensor dense = cpu.to(PhysicalDtype(cpu.scalar_type())).contiguous();
  try {
    return GetClient().BufferFromHost(dense.const_data_ptr(),
                                      lowering::PhysicalType(cpu.scalar_type(), Platform()),
                                      {dense.sizes().data(), dense.sizes().size()}, device);
  } catch (const runtime::Error& error) {
    std::rethrow_exception(AsTorchError(error));
  }
}

void Download(runtime::Buffer& buffer, void* to) {
  try {
    buffer.CopyToHost(to).Await();
  } catch (const runtime::Error& error) {
    std::rethrow_exception(AsTorchError(error));  // of the execution that made the buffer
  }
}

}  // namespace

DeviceDataPtr ToDevice(const at::Tensor& cpu, int device) {
  debug::ScopedTimer timer(TransferToDeviceTime());
  // A conjugate or negative view keeps its bits in memory unresolved.
  at::Tensor resolved = cpu.resolve_conj().resolve_neg();
  auto buffer = Upload(resolved, device);
  OutboundData().AddSample(static_cast<double>(buffer->bytes()));
  return c10::make_intrusive<DeviceData>(ir::GetShape(cpu.scalar_type(), cpu.sizes()), device,
                                         std::move(buffer));
}

DeviceDataPtr ViewOf(void* data, ir::ShapeRef shape, int device,
                     const std::shared_ptr<const void>& owner, intptr_t stream) {
  // What XLA's compiled programs take for granted of their arguments.
  const uintptr_t alignment = GetClient().host_memory() ? 64 : 128;
  if (PhysicalDtype(shape->dtype) != shape->dtype || data == nullptr ||
      reinterpret_cast<uintptr_t>(data) % alignment != 0) {
    return nullptr;
  }
  std::unique_ptr<runtime::Buffer> buffer;
  try {
    buffer = GetClient().ViewOf(data, lowering::PhysicalType(shape->dtype, Platform()),
                                {shape->dims.data(), shape->dims.size()}, device, owner, stream);
  } catch (const runtime::Error& error) {
    if (error.refused()) return nullptr;
    std::rethrow_exception(AsTorchError(error));
  }
  return c10::make_intrusive<DeviceData>(shape, device, std::move(buffer));
}

void ToHost(DeviceData& data, const at::Tensor& cpu) {
  runtime::Buffer* buffer = data.Wait();
  debug::ScopedTimer timer(TransferFromDeviceTime());
  InboundData().AddSample(static_cast<double>(buffer->bytes()));
  c10::ScalarType physical = PhysicalDtype(data.shape()->dtype);
  if (cpu.scalar_type() == physical && cpu.is_contiguous()) {
    Download(*buffer, cpu.mutable_data_ptr());
    return;
  }
  at::Tensor dense = at::empty(data.shape()->dims, at::TensorOptions().dtype(physical));
  Download(*buffer, dense.mutable_data_ptr());
  // Through the logical dtype first, so that what the user sees is what it says.
  cpu.copy_(dense.to(data.shape()->dtype));
}

at::Tensor ToHost(DeviceData& data) {
  at::Tensor cpu = at::empty(data.shape()->dims, at::TensorOptions().dtype(data.shape()->dtype));
  ToHost(data, cpu);
  return cpu;
}

std::unique_ptr<runtime::Buffer> FilledBuffer(ir::ShapeRef shape, int device,
                                              const c10::Scalar& value) {
  return Upload(at::full(shape->dims, value, at::TensorOptions().dtype(shape->dtype)), device);
}

}  // namespace torch_xla::lazy
